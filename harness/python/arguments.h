// The arrays of a call: the conditions that they must meet, and how they become a launch's tensors.
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

/// An argument has an invalid type. A TypeError in Python; every other UsageError is a ValueError.
struct TypeError : UsageError {
  using UsageError::UsageError;
};

/// One of q, k, v, out and the optional arrays, as DLPack describes it.
struct Array {
  std::string name;   // "q", for messages
  std::string dtype;  // "float16", as its own library calls it
  void* data = nullptr;
  std::vector<std::int64_t> shape, strides;  // strides count elements
};

struct Arrays {
  Array q, k, v, out;
  std::optional<Array> scales;               // if q, k and v have 8 bits: ExtendedArgs::scales
  std::optional<Array> alibi_slopes, sinks;  // as in ExtendedArgs; the problem has them if they are given
  std::optional<Array> lse;                  // where to write the log-sum-exp
};

/// The words for messages to the caller of a Python function.
extern const Words kArguments;

/// Checks everything that needs neither a version nor a device: types, shapes, strides, alignment, and that `out`
/// overlaps neither an input nor itself. Returns the problem: `asked`, which contains the masks and the lengths, with
/// the arrays' sizes and type. If packed, the arrays have shape [1, total, heads, head_dim]. Throws TypeError or UsageError.
AttentionProblem check_arrays(const Arrays& arrays, const AttentionProblem& asked);

/// The tensors of a launch.
Tensors tensors_of(const Arrays& arrays);

/// The bytes from an array's first element to its last, both included.
struct Span {
  std::uintptr_t begin, end;
};
Span span_of(const Array& array);

}  // namespace flash_ladder::python
