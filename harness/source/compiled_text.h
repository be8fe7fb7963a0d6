// What nvcc generated from a kernel file, as text, to tell whether two builds have the same code.
#pragma once

#include <string>
#include <string_view>

namespace flash_ladder {

/// A hash of what a PTX text executes: "sha256:…". It leaves out everything that depends on file locations and line
/// numbers: the directives .file and .loc and the debugging sections (PTX ISA, "Debugging Directives"), lines that
/// contain only a comment (one of which names the compiler), and white space, so that the PTX in an object, from which
/// nvcc strips them, has the same hash as the PTX in a file. nvcc may generate several texts from one source, see
/// cmake/steady_nvcc.cmake; the counts of one text cannot be compared with those of another to the last instruction.
std::string ptx_hash(std::string_view ptx);

/// The same for nvdisasm's text of machine code, which names no files: hashes everything except the lines that say
/// which line of the PTX the next instruction comes from.
std::string sass_hash(std::string_view sass);

}  // namespace flash_ladder
