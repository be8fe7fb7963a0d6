// What nvcc made of a kernel file, as text: whether two builds have the same.
#pragma once

#include <string>
#include <string_view>

namespace flash_ladder {

/// A hash of what a PTX text executes: "sha256:…". Left out is what depends on where files lie and on which line a statement
/// stands: the directives .file and .loc and the debugging sections (PTX ISA, "Debugging Directives"), lines that are only a
/// comment, among them the compiler's name, and white space, so that the text in an object, which nvcc writes without, has the
/// hash of the text in a file. nvcc may make several texts of one source, see
/// cmake/steady_nvcc.cmake; what is counted of one cannot be compared with what is counted of another to the last instruction.
std::string ptx_hash(std::string_view ptx);

/// The same of nvdisasm's text of machine code, which names no files: of all of it but the lines that say which line of the PTX the
/// next instruction comes from.
std::string sass_hash(std::string_view sass);

}  // namespace flash_ladder
