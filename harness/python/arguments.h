// The arrays of a call: what they must be, and what a launch makes of them.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "errors.h"
#include "problem/problem.h"
#include "rules/support.h"

namespace flash_ladder::python {

/// An argument is of a type that it cannot have. A TypeError in Python; every other UsageError is a ValueError.
struct TypeError : UsageError {
  using UsageError::UsageError;
};

/// One of q, k, v, out and scales, as DLPack describes it.
struct Array {
  std::string name;   // "q", for messages
  std::string dtype;  // "float16", as its own library calls it
  void* data = nullptr;
  std::vector<std::int64_t> shape, strides;  // strides count elements
};

struct Arrays {
  Array q, k, v, out;
  std::optional<Array> scales;  // where q, k and v have 8 bits: ExtendedArgs::scales
};

/// What messages say to who called a Python function.
extern const Words kArguments;

/// Checks all that needs neither a version nor a device: types, shapes, strides, alignment, and that `out` overlaps neither an
/// input nor itself. Returns the problem: `asked`, which has the masks and the lengths, with the arrays' sizes and type. Throws
/// TypeError or UsageError.
AttentionProblem check_arrays(const Arrays& arrays, const AttentionProblem& asked);

/// The tensors of a launch.
Tensors tensors_of(const Arrays& arrays);

/// The bytes between an array's first and last element, both included.
struct Span {
  std::uintptr_t begin, end;
};
Span span_of(const Array& array);

}  // namespace flash_ladder::python
