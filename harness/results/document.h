// A file of profiles/: JSON that names its schema.
#pragma once

#include <exception>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace flash_ladder {

/// What a kind of file is called in messages, the schema that this program reads, and what to do about a broken one.
struct DocumentKind {
  const char* name;    // "profile"
  int schema;          // its number, which a file has to have: 1
  const char* remedy;  // "record it again with --record"
};

/// Says why a file cannot be used. Throws UnavailableError.
[[noreturn]] void refuse_document(const DocumentKind& kind, const std::filesystem::path& path, const std::string& why);

/// The same for a document of the right schema whose members are not what the schema asks for; `error` says of which.
[[noreturn]] void refuse_form(const DocumentKind& kind, const std::filesystem::path& path, const std::exception& error);

/// Reads a file and looks at its "schema"; nullopt when there is no such file. Throws UnavailableError for one that is truncated,
/// of another schema or not readable.
std::optional<nlohmann::json> read_document(const DocumentKind& kind, const std::filesystem::path& path);

/// Checks, before work that may take minutes, that write_document() will be able to write there. Throws UsageError. Leaves nothing
/// behind.
void check_document_writable(const std::filesystem::path& path);

/// Writes a document, each element of its array `lines` on a line of its own: what is new then shows in a diff as the lines
/// that moved. Makes the directory. Throws UnavailableError.
void write_document(const std::filesystem::path& path, const nlohmann::json& document, const std::string& lines);

}  // namespace flash_ladder
