// The arrays of a call: the conditions that they must meet, and how they become a launch's tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "errors.h"
#include "gradients.h"
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
  std::optional<Array> lse;                  // where to write the log-sum-exp; for gradients, where to read it
  std::optional<Array> page_table;           // int32 [batch, width]; then k and v are pages, and shape[1] is page_size
  std::optional<Array> cache_lengths;        // int32 [batch], where the arrays are: ExtendedArgs::lengths_kv
  std::optional<Array> k_new, v_new;         // both or none: ExtendedArgs::K_new and V_new
  std::optional<Array> rotary_cos, rotary_sin;  // both or none: [rows, rotary_dim / 2], in the type of q
  std::optional<Array> k_descale, v_descale;    // if only k and v have 8 bits: ExtendedArgs::K_scales and V_scales
  std::optional<Array> dout, dq, dk, dv;        // for gradients, all four; then `out` is an input

  /// Calls visit(array) for each array that is given, the output and the log-sum-exp included.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Array* array : {&q, &k, &v, &out}) visit(*array);
    for (const auto* optional : {&scales, &alibi_slopes, &sinks, &lse, &page_table, &cache_lengths, &k_new, &v_new,
                                 &rotary_cos, &rotary_sin, &k_descale, &v_descale, &dout, &dq, &dk, &dv})
      if (optional->has_value()) visit(**optional);
  }
};

/// The words for messages to the caller of a Python function.
extern const Words kArguments;

/// Checks everything that needs neither a version nor a device: types, shapes, strides, alignment, and that `out`
/// overlaps neither an input nor itself. Returns the problem: `asked`, which contains the masks and the lengths, with
/// the arrays' sizes and type. If packed, the arrays have shape [1, total, heads, head_dim]. Throws TypeError or UsageError.
AttentionProblem check_arrays(const Arrays& arrays, const AttentionProblem& asked);

/// Reads the page table and the lengths, which must be in host memory. Throws UsageError for a page that does not exist, and for
/// a length that is out of range. On a GPU, nothing reads them but the kernel.
void check_cache(const Arrays& arrays, const AttentionProblem& problem);

/// The gradients of a launch, if they are given.
Gradients gradients_of(const Arrays& arrays, bool packed);

/// The tensors of a launch.
Tensors tensors_of(const Arrays& arrays);

/// The bytes from an array's first element to its last, both included.
struct Span {
  std::uintptr_t begin, end;
};
Span span_of(const Array& array);

}  // namespace flash_ladder::python
