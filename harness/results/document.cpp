#include "results/document.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "errors.h"
#include "results/atomic_file.h"

namespace flash_ladder {

using nlohmann::json;

void refuse_document(const DocumentKind& kind, const std::filesystem::path& path, const std::string& why) {
  throw UnavailableError(fmt::format("the {} '{}' cannot be used: {}; {}, or restore it from the repository", kind.name,
                                     path.string(), why, kind.remedy));
}

void refuse_form(const DocumentKind& kind, const std::filesystem::path& path, const std::exception& error) {
  refuse_document(kind, path, fmt::format("it does not conform to schema {} ({})", kind.schema, error.what()));
}

std::optional<json> read_document(const DocumentKind& kind, const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return std::nullopt;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) refuse_document(kind, path, errno ? std::strerror(errno) : "it is empty");

  json document;
  try {
    document = json::parse(text.str());
  } catch (const json::parse_error& stop) {
    refuse_document(
        kind, path,
        fmt::format("it is truncated or not JSON (stopped at byte {} of {})", stop.byte, text.str().size()));
  } catch (const json::out_of_range&) {
    refuse_document(kind, path, "it has a number that is too large");
  }
  if (!document.is_object() || !document.contains("schema"))
    refuse_document(kind, path, fmt::format("it has no \"schema\" so it is not a {}", kind.name));
  if (const json& schema = document["schema"]; schema != kind.schema)
    refuse_document(kind, path,
                    fmt::format("it has schema {}, and this program reads schema {}",
                                schema.is_number() ? schema.dump() : std::string("of another type"), kind.schema));
  return document;
}

void check_document_writable(const std::filesystem::path& path) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    throw UsageError(fmt::format("cannot create the directory '{}': {}; choose another place with --profiles",
                                 path.parent_path().string(), error.message()));
  check_writable(path);
  if (made) std::filesystem::remove(path.parent_path(), error);
}

void write_document(const std::filesystem::path& path, const json& document, const std::string& lines) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    throw UnavailableError(
        fmt::format("cannot create the directory '{}': {}", path.parent_path().string(), error.message()));

  std::string text = "{\n";
  std::string elements;
  for (const auto& [member, value] : document.items())
    if (member != lines) text += fmt::format("{}: {},\n", json(member).dump(), value.dump());
  for (const auto& element : document.at(lines)) {
    if (!elements.empty()) elements += ",\n";
    elements += element.dump();
  }
  text += fmt::format("{}: [\n{}\n]\n}}\n", json(lines).dump(), elements);
  write_file_atomically(path, text);
}

}  // namespace flash_ladder
