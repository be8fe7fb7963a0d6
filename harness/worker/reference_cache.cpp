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
constexpr int kFormat = 4;

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

// In the order of the file.
template <typename Reference>
auto contents(Reference& reference) {
  return std::array{std::span(reference.bound), std::span(reference.output), std::span(reference.log_sum_exp_bound),
                    std::span(reference.log_sum_exp)};
}

}  // namespace

std::string reference_file_name(std::string_view of, const AttentionProblem& problem, Distribution distribution,
                                const RowSelection& rows, std::uint64_t seed) {
  return fmt::format("{}-{}-{}-{}-{}-{}.bin", of, kFormat, file_name_part(problem), to_string(distribution), rows.tile,
                     seed);
}

bool read_cached(const std::filesystem::path& file, std::span<const std::span<std::byte>> parts) {
  std::size_t content = 0;
  for (const auto& part : parts) content += part.size();
  std::uint64_t sum;
  std::error_code missing;
  if (file.empty() || std::filesystem::file_size(file, missing) != content + sizeof sum) return false;
  std::string bytes(content, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(bytes.data(), static_cast<std::streamsize>(content));
  stream.read(reinterpret_cast<char*>(&sum), sizeof sum);
  if (!stream || checksum(bytes) != sum) return false;
  const char* from = bytes.data();
  for (const auto& part : parts) {
    std::memcpy(part.data(), from, part.size());
    from += part.size();
  }
  return true;
}

bool write_cached(const std::filesystem::path& file, std::span<const std::span<const std::byte>> parts) {
  if (file.empty()) return false;
  std::string bytes;
  for (const auto& part : parts) bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  const std::uint64_t sum = checksum(bytes);
  bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  try {
    write_file_atomically(file, bytes);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::optional<Reference> read_reference(const std::filesystem::path& file, const AttentionProblem& problem,
                                        const RowSelection& rows) {
  const std::size_t heads = problem.batch * problem.heads, logs = heads * rows.count();
  Reference reference{.problem = problem,
                      .rows = rows,
                      .output = std::vector<double>(logs * value_head_dim(problem)),
                      .bound = std::vector<double>(heads),
                      .log_sum_exp = std::vector<double>(logs),
                      .log_sum_exp_bound = std::vector<double>(heads)};
  std::vector<std::span<std::byte>> parts;
  for (const std::span<double> numbers : contents(reference)) parts.push_back(std::as_writable_bytes(numbers));
  if (!read_cached(file, parts)) return std::nullopt;
  return reference;
}

bool write_reference(const std::filesystem::path& file, const Reference& reference) {
  std::vector<std::span<const std::byte>> parts;
  for (const std::span<const double> numbers : contents(reference)) parts.push_back(std::as_bytes(numbers));
  return write_cached(file, parts);
}

}  // namespace flash_ladder
