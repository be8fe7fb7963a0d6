// A file of profiles/: JSON with a schema number.
#pragma once

#include <exception>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace flash_ladder {

/// What messages call this kind of file, the schema that this program reads, and how to repair a broken file.
struct DocumentKind {
  const char* name;    // "profile"
  int schema;          // the required schema number: 1
  const char* remedy;  // "record it again with --record"
};

/// Throws UnavailableError, which says why a file cannot be used.
[[noreturn]] void refuse_document(const DocumentKind& kind, const std::filesystem::path& path, const std::string& why);

/// The same for a document of the right schema whose members do not conform to it; `error` names the member.
[[noreturn]] void refuse_form(const DocumentKind& kind, const std::filesystem::path& path, const std::exception& error);

/// Reads a file and checks its "schema"; nullopt if there is no such file. Throws UnavailableError if the file is
/// truncated, of another schema or not readable.
std::optional<nlohmann::json> read_document(const DocumentKind& kind, const std::filesystem::path& path);

/// Checks, before work that may take minutes, that write_document() will be able to write there. Throws UsageError. Leaves nothing
/// behind.
void check_document_writable(const std::filesystem::path& path);

/// Writes a document with each element of its array `lines` on its own line, so that a diff shows exactly the elements
/// that changed. Creates the directory. Throws UnavailableError.
void write_document(const std::filesystem::path& path, const nlohmann::json& document, const std::string& lines);

}  // namespace flash_ladder
