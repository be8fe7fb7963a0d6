#include "worker/reference_cache.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <exception>
#include <fstream>
#include <system_error>

#include "problem/problem.h"
#include "results/atomic_file.h"

namespace flash_ladder {
namespace {

// Increment it when the file format changes, or the way inputs or references are computed.
constexpr int kFormat = 3;

// Every step is one-to-one, so changing any single word changes the sum.
std::uint64_t checksum(const std::string& bytes) {
  std::uint64_t sum = bytes.size();
  for (std::size_t i = 0; i + sizeof sum <= bytes.size(); i += sizeof sum) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    sum = ((sum ^ word) * 0x9e3779b97f4a7c15u) ^ (sum >> 32);
  }
  return sum;
}

void append(std::string& bytes, const std::vector<double>& values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
}

// In the order of the file.
template <typename Reference>
auto contents(Reference& reference) {
  return std::array{&reference.bound, &reference.output, &reference.log_sum_exp_bound, &reference.log_sum_exp};
}

}  // namespace

std::string reference_file_name(const AttentionProblem& problem, Distribution distribution, const RowSelection& rows,
                                std::uint64_t seed) {
  return fmt::format("reference-{}-{}-{}-{}-{}.bin", kFormat, file_name_part(problem), to_string(distribution),
                     rows.tile, seed);
}

std::optional<Reference> read_reference(const std::filesystem::path& file, const AttentionProblem& problem,
                                        const RowSelection& rows) {
  const std::size_t heads = problem.batch * problem.heads, logs = heads * rows.count(),
                    outputs = logs * problem.head_dim;
  const std::size_t content = (2 * heads + logs + outputs) * sizeof(double);
  std::uint64_t sum;
  std::error_code missing;
  if (std::filesystem::file_size(file, missing) != content + sizeof sum) return std::nullopt;
  std::string bytes(content, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(bytes.data(), static_cast<std::streamsize>(content));
  stream.read(reinterpret_cast<char*>(&sum), sizeof sum);
  if (!stream || checksum(bytes) != sum) return std::nullopt;

  Reference reference{.problem = problem,
                      .rows = rows,
                      .output = std::vector<double>(outputs),
                      .bound = std::vector<double>(heads),
                      .log_sum_exp = std::vector<double>(logs),
                      .log_sum_exp_bound = std::vector<double>(heads)};
  const char* from = bytes.data();
  for (std::vector<double>* values : contents(reference)) {
    std::memcpy(values->data(), from, values->size() * sizeof(double));
    from += values->size() * sizeof(double);
  }
  return reference;
}

bool write_reference(const std::filesystem::path& file, const Reference& reference) {
  std::string bytes;
  for (const std::vector<double>* values : contents(reference)) append(bytes, *values);
  const std::uint64_t sum = checksum(bytes);
  bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  try {
    write_file_atomically(file, bytes);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace flash_ladder
