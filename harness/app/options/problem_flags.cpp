#include "app/options/problem_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "app/options/parse_integer.h"
#include "app/options/standard_shapes.h"
#include "errors.h"
#include "problem/fields.h"
#include "problem/problem.h"

namespace flash_ladder {
namespace {

constexpr auto kMostOfField = std::numeric_limits<std::int64_t>::max();

// For --help.
std::string defaults_of(std::string_view field) {
  const auto both = [](std::int64_t gpu, std::int64_t emulator) {
    return fmt::format("{}; virtual GPU: {}", gpu, emulator);
  };
  if (field == "batch") return both(kDefaultShape.batch, kEmulatorShape.batch);
  if (field == "heads") return both(kStandardHeads, kEmulatorHeads);
  if (field == "seq_len") return both(kDefaultShape.seq_len, kEmulatorShape.seq_len);
  if (field == "head_dim") return std::to_string(kStandardHeadDim);
  return "";
}

std::int64_t longest(const std::vector<std::int64_t>& of_each, std::int64_t otherwise) {
  return of_each.empty() ? otherwise : std::max<std::int64_t>(std::ranges::max(of_each), 1);
}

// ---- Values as they are typed ----

void read_typed(const Field<std::int64_t>& field, const std::string& text, std::int64_t& value) {
  value = parse_integer<std::int64_t>(flag_of(field.name), text, field.least, kMostOfField);
}

void read_typed(const Field<double>& field, const std::string& text, double& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size())
    throw UsageError(fmt::format("{} '{}' is not a number; give one above 0", flag_of(field.name), text));
}

void read_typed(const Field<Dtype>& /*field*/, const std::string& text, Dtype& value) {
  const auto dtype = dtype_from_string(text);
  if (!dtype) throw UsageError(fmt::format("--dtype '{}' is unknown; allowed: {}", text, all_dtypes()));
  value = *dtype;
}

// "100,64,7".
void read_typed(const Field<std::vector<std::int64_t>>& field, const std::string& text,
                std::vector<std::int64_t>& value) {
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');)
    value.push_back(parse_integer<std::int64_t>(flag_of(field.name), part, field.least, kMostOfField));
}

}  // namespace

ProblemFlags::ProblemFlags(CLI::App& app) : app_(app) {
  constexpr const char* kGroup = "The problem";
  for_each_field([&]<typename Value>(const Field<Value>& field) {
    const std::string help = fmt::format(fmt::runtime(field.help), defaults_of(field.name));
    if constexpr (std::is_same_v<Value, bool>)
      app.add_flag(flag_of(field.name), switches_[field.name], help)->group(kGroup);
    else
      app.add_option(flag_of(field.name), texts_[field.name], help)->type_name(field.value_name)->group(kGroup);
  });
}

std::vector<std::string> ProblemFlags::names() {
  std::vector<std::string> flags;
  for_each_field([&](const auto& field) { flags.push_back(flag_of(field.name)); });
  return flags;
}

bool ProblemFlags::given(const char* field) const { return app_.count(flag_of(field)) != 0; }

AttentionProblem ProblemFlags::typed() const {
  AttentionProblem problem = this->problem(/*is_virtual=*/false);
  for_each_field([&]<typename Value>(const Field<Value>& field) {
    if constexpr (std::is_same_v<Value, std::int64_t>)
      if (!field.is_extension() && !given(field.name)) problem.*field.member = 0;
  });
  return problem;
}

AttentionProblem ProblemFlags::without_defaults() const {
  AttentionProblem problem;
  for_each_field([&]<typename Value>(const Field<Value>& field) {
    Value& value = problem.*field.member;
    if constexpr (std::is_same_v<Value, bool>)
      value = switches_.at(field.name);
    else if (given(field.name))
      read_typed(field, texts_.at(field.name), value);
    else if (field.same_as != nullptr)
      value = problem.*field.same_as;
  });
  return problem;
}

AttentionProblem ProblemFlags::problem(bool is_virtual) const {
  AttentionProblem problem = without_defaults();
  const StandardShape shape = is_virtual ? kEmulatorShape : kDefaultShape;
  const std::int64_t entries = std::ssize(problem.lengths_kv);
  if (!given("batch")) problem.batch = entries == 0 ? shape.batch : entries;
  if (!given("heads")) problem.heads = is_virtual ? kEmulatorHeads : kStandardHeads;
  if (!given("seq_len")) problem.seq_len = longest(problem.lengths, shape.seq_len);
  if (!given("seq_len_kv")) problem.seq_len_kv = std::max(problem.seq_len, longest(problem.lengths_kv, 1));
  if (!given("head_dim")) problem.head_dim = kStandardHeadDim;
  return in_plainest_form(std::move(problem));
}

AttentionProblem ProblemFlags::decoding_problem(bool is_virtual) const {
  AttentionProblem problem = without_defaults();
  const StandardShape shape = is_virtual ? kEmulatorDecodingShape : kDefaultDecodingShape;
  const std::int64_t entries = std::ssize(problem.lengths_kv);
  if (!given("batch")) problem.batch = entries == 0 ? shape.batch : entries;
  if (!given("heads")) problem.heads = is_virtual ? kEmulatorDecodingHeads : kDecodingHeads;
  if (!given("heads") && !given("kv_heads"))
    problem.kv_heads = is_virtual ? kEmulatorDecodingKvHeads : kDecodingKvHeads.front();
  if (!given("seq_len")) problem.seq_len = longest(problem.lengths, 1);
  if (!given("seq_len_kv")) problem.seq_len_kv = longest(problem.lengths_kv, shape.seq_len);
  if (!given("head_dim")) problem.head_dim = kStandardHeadDim;
  return in_plainest_form(std::move(problem));
}

}  // namespace flash_ladder
