#include "python/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "problem/fields.h"

namespace flash_ladder::python {
namespace {

constexpr std::int64_t kAlignment = 16;  // of every row, in bytes: the kernels load and store 16 at a time

std::string shape_of(const Array& array) { return fmt::format("({})", fmt::join(array.shape, ", ")); }

std::optional<Dtype> known_dtype(const Array& array) {
  if (array.dtype == "float16") return Dtype::fp16;
  if (array.dtype == "bfloat16") return Dtype::bf16;
  if (array.dtype == "float8_e4m3fn" || array.dtype == "uint8") return Dtype::e4m3;
  return std::nullopt;
}

Dtype dtype_of(const Array& array) {
  if (const auto dtype = known_dtype(array)) return *dtype;
  throw TypeError(fmt::format("{} has dtype {}; allowed: float16, bfloat16, float8_e4m3fn, or its bits as uint8",
                              array.name, array.dtype));
}

std::int64_t element_bytes(const Array& array) {
  return array.dtype == "float32" || array.dtype == "int32" ? 4 : dtype_of(array) == Dtype::e4m3 ? 1 : 2;
}

// Whether K and V have 8 bits, with scales of their own, and Q has 16. Only a cache may.
bool has_fp8_cache(const Arrays& arrays) {
  return arrays.k.name == "k_cache" && known_dtype(arrays.k) == Dtype::e4m3 && known_dtype(arrays.q) != Dtype::e4m3;
}

void check_dtypes(const Arrays& arrays) {
  const auto &q = arrays.q, &k = arrays.k, &v = arrays.v, &out = arrays.out;
  const auto& scales = arrays.scales;
  const Dtype dtype = dtype_of(q);
  for (const Array* other : {&k, &v})
    if (const Array& like = has_fp8_cache(arrays) ? k : q; known_dtype(*other) != known_dtype(like))
      throw TypeError(fmt::format("{} has dtype {} and {} has dtype {}; they must be equal", other->name, other->dtype,
                                  like.name, like.dtype));
  const bool in_8_bits = dtype == Dtype::e4m3;
  if (known_dtype(out) != (in_8_bits ? Dtype::fp16 : dtype))
    throw TypeError(fmt::format("{} has dtype {} and q has dtype {}; {}", out.name, out.dtype, q.dtype,
                                in_8_bits ? "out must be float16" : "they must be equal"));
  if (in_8_bits && !scales)
    throw TypeError(fmt::format(
        "q has dtype {}, and scales is None; give a float32 array of shape [3, batch, heads]: what the elements of q, k and v "
        "are multiplied by",
        q.dtype));
  for (const auto& [descale, name, cache] :
       {std::tuple{&arrays.k_descale, "k_descale", &k}, {&arrays.v_descale, "v_descale", &v}}) {
    if (has_fp8_cache(arrays) && !*descale)
      throw TypeError(
          fmt::format("{} has dtype {}, and {} is None; give a float32 array of shape [batch, heads of {}]: "
                      "what its elements are multiplied by",
                      cache->name, cache->dtype, name, cache->name));
    if (!has_fp8_cache(arrays) && *descale)
      throw TypeError(fmt::format("{} is given, and {} has dtype {}; leave it out", name, cache->name, cache->dtype));
  }
  if (!in_8_bits && scales) throw TypeError(fmt::format("scales is given, and q has dtype {}; leave it out", q.dtype));
}

// A contiguous array of this shape, "[3, batch, heads of q]" in words, and of 32-bit numbers: "float32".
void check_numbers(const Array& array, const std::vector<std::int64_t>& shape, const char* words,
                   const char* dtype = "float32") {
  if (array.dtype != dtype)
    throw TypeError(fmt::format("{} has dtype {}; it must be {}", array.name, array.dtype, dtype));
  if (array.shape != shape)
    throw UsageError(fmt::format("{} has shape {}; it must be {}, ({})", array.name, shape_of(array), words,
                                 fmt::join(shape, ", ")));
  std::int64_t stride = 1;
  for (std::int64_t i = std::ssize(shape) - 1; i >= 0; stride *= shape[i--])
    if (shape[i] > 1 && array.strides[i] != stride)
      throw UsageError(
          fmt::format("{} has strides ({}); it must be contiguous", array.name, fmt::join(array.strides, ", ")));
  const auto address = reinterpret_cast<std::uintptr_t>(array.data);
  if (address % sizeof(float) != 0)
    throw UsageError(fmt::format("{} begins at address {:#x}, which is not a multiple of {} bytes; copy it", array.name,
                                 address, sizeof(float)));
}

void check_shapes(const Arrays& arrays) {
  for (const Array* array : {&arrays.q, &arrays.k, &arrays.v, &arrays.out})
    if (array->shape.size() != 4)
      throw UsageError(fmt::format("{} has shape {}, of {} dimensions; it must be [batch, seq_len, heads, head_dim]",
                                   array->name, shape_of(*array), array->shape.size()));
  const Array &q = arrays.q, &k = arrays.k, &v = arrays.v, &out = arrays.out;
  if (k.shape[0] != v.shape[0] || k.shape[1] != v.shape[1] || k.shape[2] != v.shape[2])
    throw UsageError(fmt::format("{} has shape {} and {} has shape {}; only head_dim, shape[3], may differ", k.name,
                                 shape_of(k), v.name, shape_of(v)));
  if (q.shape[3] > 0 && v.shape[3] < 1)  // otherwise, the problem names q
    throw UsageError(fmt::format("{} has shape {}; its head_dim, shape[3], must be at least 1", v.name, shape_of(v)));
  if (arrays.page_table && q.shape[3] != k.shape[3])
    throw UsageError(fmt::format("q has shape {} and {} has shape {}; head_dim, shape[3], must be equal", shape_of(q),
                                 k.name, shape_of(k)));
  if (!arrays.page_table && (q.shape[0] != k.shape[0] || q.shape[3] != k.shape[3]))
    throw UsageError(
        fmt::format("q has shape {} and {} has shape {}; only seq_len, shape[1], and heads, shape[2], may differ",
                    shape_of(q), k.name, shape_of(k)));
  std::vector<std::int64_t> expected = q.shape;
  expected[3] = v.shape[3];
  if (out.shape != expected)
    throw UsageError(fmt::format("out has shape {}; it must be that of q{}, ({})", shape_of(out),
                                 expected == q.shape ? "" : " with v's head_dim", fmt::join(expected, ", ")));
}

// A dimension of one element has no next element, and libraries set its stride to any value.
void check_layout(const Array& array) {
  if (array.strides[3] != 1)
    throw UsageError(fmt::format(
        "{} has stride {} in its last dimension, head_dim; it must be 1: make it contiguous, or transpose another way",
        array.name, array.strides[3]));
  for (int i = 0; i < 3; ++i)
    if (array.shape[i] > 1 && array.strides[i] * element_bytes(array) % kAlignment != 0)
      throw UsageError(fmt::format("{} has stride {} in dimension {}; allowed: multiples of {} elements ({} bytes)",
                                   array.name, array.strides[i], i, kAlignment / element_bytes(array), kAlignment));
  const auto address = reinterpret_cast<std::uintptr_t>(array.data);
  if (address % kAlignment != 0)
    throw UsageError(
        fmt::format("{} begins at address {:#x}, which is not a multiple of {} bytes; copy it, or slice it at "
                    "a multiple of {} elements",
                    array.name, address, kAlignment, kAlignment / element_bytes(array)));
}

// What only the backward pass has.
void check_gradients(const Arrays& arrays, bool packed) {
  for (const auto& [array, like] :
       {std::pair{&*arrays.dout, arrays.out.shape == arrays.q.shape ? &arrays.q : &arrays.out},
        {&*arrays.dq, &arrays.q},
        {&*arrays.dk, &arrays.k},
        {&*arrays.dv, &arrays.v}}) {
    if (array->dtype != arrays.q.dtype)
      throw TypeError(fmt::format("{} has dtype {} and q has dtype {}; they must be equal", array->name, array->dtype,
                                  arrays.q.dtype));
    if (array->shape != like->shape)
      throw UsageError(fmt::format("{} has shape {}; it must be that of {}, {}", array->name, shape_of(*array),
                                   like->name, shape_of(*like)));
    check_layout(*array);
  }
  const std::vector<std::int64_t>& q = arrays.q.shape;
  if (packed)
    check_numbers(*arrays.lse, {q[2], q[1]}, "[heads, total]");
  else
    check_numbers(*arrays.lse, {q[0], q[2], q[1]}, "[batch, heads, seq_len]");
}

// The dimensions, from the smallest stride to the largest.
std::array<int, 4> by_stride(const Array& array) {
  std::array<int, 4> order{};
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return std::abs(array.strides[a]) < std::abs(array.strides[b]); });
  return order;
}

// What only a new token has. `problem` has the sizes of the cache.
void check_new_token(const Arrays& arrays, const AttentionProblem& problem) {
  const auto both_or_none = [](const std::optional<Array>& one, const char* name, const std::optional<Array>& other,
                               const char* other_name) {
    if (one.has_value() == other.has_value()) return;
    throw UsageError(fmt::format("{0} is given, and {1} is None; give both, or leave {0} out", one ? name : other_name,
                                 one ? other_name : name));
  };
  both_or_none(arrays.k_new, "k_new", arrays.v_new, "v_new");
  both_or_none(arrays.rotary_cos, "rotary_cos", arrays.rotary_sin, "rotary_sin");
  if (arrays.rotary_cos && !arrays.k_new)
    throw UsageError("rotary_cos is given, and k_new is None: only a new token is rotated; give k_new and v_new");
  if (!arrays.k_new) return;
  const std::vector<std::int64_t> shape{arrays.q.shape[0], 1, arrays.k.shape[2], arrays.k.shape[3]};
  for (const Array* array : {&*arrays.k_new, &*arrays.v_new}) {
    if (array->dtype != arrays.q.dtype)
      throw TypeError(fmt::format("{} has dtype {} and q has dtype {}; they must be equal", array->name, array->dtype,
                                  arrays.q.dtype));
    if (array->shape != shape)
      throw UsageError(fmt::format("{} has shape {}; it must be [batch, 1, heads of {}, head_dim], ({})", array->name,
                                   shape_of(*array), arrays.k.name, fmt::join(shape, ", ")));
    check_layout(*array);
  }
  if (!arrays.cache_lengths && problem.lengths_kv.empty())
    throw UsageError("k_new is given, and lengths is None; give the number of keys in the cache, after which it goes");
  if (!arrays.rotary_cos) return;
  for (const Array* array : {&*arrays.rotary_cos, &*arrays.rotary_sin}) {
    if (array->shape.size() != 2 || array->shape[0] < problem.seq_len_kv)
      throw UsageError(
          fmt::format("{} has shape {}; it must be [rows, rotary_dim / 2], with a row for each of the {} "
                      "keys for which there is room",
                      array->name, shape_of(*array), problem.seq_len_kv));
    check_numbers(*array, {arrays.rotary_cos->shape[0], arrays.rotary_cos->shape[1]}, "[rows, rotary_dim / 2]",
                  arrays.q.dtype.c_str());
    if (reinterpret_cast<std::uintptr_t>(array->data) % kAlignment != 0)
      throw UsageError(fmt::format("{} does not begin at a multiple of {} bytes; copy it", array->name, kAlignment));
  }
}

// From the smallest stride to the largest, each must step over everything that the smaller ones reach. (Strides that
// interleave without overlapping exist, but are not used in practice.)
bool overlaps_itself(const Array& array) {
  std::int64_t reach = 0;  // the distance between the first and the last element, using the strides so far
  for (const int i : by_stride(array)) {
    if (array.shape[i] == 1) continue;
    if (std::abs(array.strides[i]) <= reach) return true;
    reach += (array.shape[i] - 1) * std::abs(array.strides[i]);
  }
  return false;
}

void check_overlaps_not_itself(const Array& out) {
  if (overlaps_itself(out))
    throw UsageError(
        fmt::format("out has strides ({}) with shape {}: some of its elements share memory; give it memory for all",
                    fmt::join(out.strides, ", "), shape_of(out)));
}

// Whether elements of two arrays with these strides can be this far apart: by a sum of strides, each multiplied by a
// possible difference of indices. The first `left` dimensions of `order` remain. Smaller strides do not reach as far as
// the next one, so the multiple of that one is the quotient of the distance, or one more or less.
bool can_be_apart(std::int64_t distance, const Array& out, const Array& in, const Array& both,
                  const std::array<int, 4>& order, int left) {
  if (left == 0) return distance == 0;
  const int i = order[left - 1];
  if (both.shape[i] == 1) return can_be_apart(distance, out, in, both, order, left - 1);
  const std::int64_t often = distance / both.strides[i];
  for (std::int64_t n = often - 1; n <= often + 1; ++n)
    if (-in.shape[i] < n && n < out.shape[i] &&
        can_be_apart(distance - n * both.strides[i], out, in, both, order, left - 1))
      return true;
  return false;
}

// Slices of one packed array, such as out next to q, k and v, interleave without overlapping. For arrays with different
// strides this is not checked.
bool lie_between_each_other(const Array& out, const Array& in) {
  if (in.shape.size() != out.shape.size() || element_bytes(in) != element_bytes(out)) return false;
  Array both = out;  // the larger shape
  for (std::size_t i = 0; i < both.shape.size(); ++i) {
    if (in.shape[i] == 1) continue;
    if (out.shape[i] != 1 && in.strides[i] != out.strides[i]) return false;
    both.strides[i] = in.strides[i];
    both.shape[i] = std::max(in.shape[i], out.shape[i]);
  }
  if (overlaps_itself(both)) return false;
  const std::int64_t bytes = static_cast<const char*>(in.data) - static_cast<const char*>(out.data);
  return !can_be_apart(bytes / element_bytes(out), out, in, both, by_stride(both), 4);
}

void check_overlaps_no_input(const Arrays& arrays) {
  const Span out = span_of(arrays.out);
  arrays.for_each([&](const Array& input) {
    if (&input == &arrays.out || (arrays.lse && &input == &*arrays.lse)) return;
    const Span in = span_of(input);
    if (out.begin < in.end && in.begin < out.end && !lie_between_each_other(arrays.out, input))
      throw UsageError(fmt::format("out, at {:#x} to {:#x}, overlaps {}, at {:#x} to {:#x}; give it its own memory",
                                   out.begin, out.end, input.name, in.begin, in.end));
  });
}

// The newest kernel, which runs if none is named, computes the 16-bit types.
std::string use_kernel_for(const Version& /*version*/, Dtype dtype) {
  if (dtype != Dtype::e4m3) return "leave kernel out";
  std::vector<std::string> names;
  for (const Version& version : versions())
    if (std::ranges::any_of(version.configurations, [&](const Configuration& one) { return one.dtype == dtype; }))
      names.push_back(fmt::format("kernel=\"{}\"", label(version)));
  return fmt::format("use {}", fmt::join(names, " or "));
}

Tensor tensor_of(const Array& array) {
  return {.data = array.data,
          .batch_stride = array.strides[0],
          .row_stride = array.strides[1],
          .head_stride = array.strides[2]};
}

// The argument that a field is, or the dimension that it is read from.
std::string name_of(std::string_view field) {
  constexpr std::pair<std::string_view, const char*> kFromArrays[] = {
      {"batch", "q.shape[0] (batch)"},
      {"heads", "q.shape[2] (heads)"},
      {"seq_len", "q.shape[1] (seq_len)"},
      {"seq_len_kv", "k.shape[1] (seq_len of k and v)"},
      {"head_dim", "q.shape[3] (head_dim)"},
      {"head_dim_v", "v.shape[3] (head_dim of v, other than q's)"},
      {"kv_heads", "k.shape[2] (heads of k and v, other than q's)"},
      {"packed", "cu_seqlens_q"},
      {"page_size", "k_cache.shape[1] (page_size)"},
      {"append", "k_new"},
      {"fp8_cache", "k_descale"},
      {"rotary_dim", "rotary_cos"},
      {"alibi", "alibi_slopes"},
      {"sinks", "sinks"},
      {"window_left", "window"},
      {"window_right", "window"},
  };
  for (const auto& [known, text] : kFromArrays)
    if (known == field) return text;
  return std::string(field) + (is_switch(field) ? "=True" : "");
}

}  // namespace

const Words kArguments{
    .size = name_of,
    .extension = name_of,
    .without = [](std::string_view field) -> std::string {
      if (field == "head_dim_v") return "give v the head_dim of q";
      return field == "kv_heads" ? "give k and v as many heads as q has" : "leave it out";
    },
    .use_size = [](const std::string& /*name*/) { return std::string(); },
    .use_config = [](const std::string& name) { return fmt::format("config=\"{}\"", name); },
    .use_dtype = use_kernel_for,
    .without_gpu = "give arrays in host memory: they run on the virtual GPU",
    .other_gpu = "or arrays in host memory: they run on the virtual GPU",
};

Span span_of(const Array& array) {
  std::int64_t first = 0, last = 0;
  for (std::size_t i = 0; i < array.shape.size(); ++i) {
    const std::int64_t reach = (array.shape[i] - 1) * array.strides[i];
    (reach < 0 ? first : last) += reach;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(array.data);
  const std::int64_t bytes = element_bytes(array);
  return {.begin = address + first * bytes, .end = address + (last + 1) * bytes};
}

AttentionProblem check_arrays(const Arrays& arrays, const AttentionProblem& asked) {
  const auto &q = arrays.q, &k = arrays.k, &v = arrays.v, &out = arrays.out;
  const auto &scales = arrays.scales, &alibi_slopes = arrays.alibi_slopes, &sinks = arrays.sinks;
  check_dtypes(arrays);
  check_shapes(arrays);
  if (k.shape[2] < 1 && q.shape[2] > 0)  // if q has none either, that is reported below
    throw UsageError(fmt::format("{} has shape {}; it needs at least one head", k.name, shape_of(k)));
  AttentionProblem problem = asked;
  if (arrays.page_table) {
    const Array& table = *arrays.page_table;
    if (table.shape.size() != 2 || table.shape[1] < 1)
      throw UsageError(
          fmt::format("page_table has shape {}; it must be [batch, pages], with at least one page", shape_of(table)));
    check_numbers(table, {q.shape[0], table.shape[1]}, "[batch, pages]", "int32");
    if (k.shape[0] < 1 || k.shape[0] > std::numeric_limits<std::int32_t>::max())
      throw UsageError(fmt::format("{} has shape {}; allowed: 1 to {} pages", k.name, shape_of(k),
                                   std::numeric_limits<std::int32_t>::max()));
    problem.page_size = k.shape[1];
    if (const auto why = why_no_page_size(problem.page_size, kArguments)) throw UsageError(*why);
  }
  if (arrays.cache_lengths) check_numbers(*arrays.cache_lengths, {q.shape[0]}, "[batch]", "int32");
  if (!problem.packed) {
    problem.batch = q.shape[0];
    problem.seq_len = q.shape[1];
    problem.seq_len_kv = arrays.page_table ? arrays.page_table->shape[1] * problem.page_size : k.shape[1];
  }
  problem.heads = q.shape[2];
  problem.kv_heads = k.shape[2];
  problem.head_dim = q.shape[3];
  problem.head_dim_v = v.shape[3];
  problem.dtype = dtype_of(q);
  problem.alibi = alibi_slopes.has_value();
  problem.sinks = sinks.has_value();
  check_new_token(arrays, problem);
  problem.append = arrays.k_new.has_value();
  problem.fp8_cache = has_fp8_cache(arrays);
  if (arrays.rotary_cos) problem.rotary_dim = 2 * arrays.rotary_cos->shape[1];
  problem = in_plainest_form(std::move(problem));
  if (const auto why = why_impossible(problem, kArguments)) throw UsageError(*why);
  if (problem.head_dim < 1)
    throw UsageError(fmt::format("{} is {}; allowed: 1 or more", kArguments.size("head_dim"), problem.head_dim));
  for (const Array* array : {&q, &k, &v, &out}) check_layout(*array);
  if (problem.packed)
    for (const auto& [array, name, rows] :
         {std::tuple{&q, "cu_seqlens_q", total_rows(problem)}, {&k, "cu_seqlens_k", total_rows_kv(problem)}})
      if (array->shape[0] != 1 || array->shape[1] != rows)
        throw UsageError(fmt::format("{} has {} rows, and {} ends with {}; they must be equal", array->name,
                                     array->shape[1], name, rows));
  if (scales) check_numbers(*scales, {3, problem.batch, problem.heads}, "[3, batch, heads of q]");
  for (const auto& descale : {&arrays.k_descale, &arrays.v_descale})
    if (*descale) check_numbers(**descale, {problem.batch, k.shape[2]}, "[batch, heads of k_cache]");
  for (const auto& optional : {&alibi_slopes, &sinks})
    if (*optional) check_numbers(**optional, {problem.heads}, "[heads of q]");
  if (arrays.dout) {
    check_gradients(arrays, problem.packed);
    return problem;  // the outputs are new
  }
  check_overlaps_not_itself(out);
  check_overlaps_no_input(arrays);
  return problem;
}

void check_cache(const Arrays& arrays, const AttentionProblem& problem) {
  const auto number = [](const Array& array, std::int64_t i) {
    return static_cast<const std::int32_t*>(array.data)[i];
  };
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    std::int64_t length = num_keys(problem, batch);
    if (arrays.cache_lengths) {
      length = number(*arrays.cache_lengths, batch);
      const std::int64_t most = problem.seq_len_kv - problem.append;
      if (length < 0 || length > most)
        throw UsageError(fmt::format(
            "{}[{}] is {}; allowed: 0 to {}, {}", arrays.cache_lengths->name, batch, length, most,
            problem.append ? "one less than the keys for which there is room" : "the keys for which there is room"));
      length += problem.append;
    }
    if (!arrays.page_table) continue;
    const std::int64_t width = arrays.page_table->shape[1], count = arrays.k.shape[0];
    for (std::int64_t i = 0; i * problem.page_size < length; ++i) {
      const std::int64_t page = number(*arrays.page_table, batch * width + i);
      if (page < 0 || page >= count)
        throw UsageError(fmt::format("page_table[{}, {}] is {}, and {} has {} pages; allowed: 0 to {}", batch, i, page,
                                     arrays.k.name, count, count - 1));
    }
  }
}

Gradients gradients_of(const Arrays& arrays, bool packed) {
  if (!arrays.dout) return {};
  Gradients gradients{.dO = tensor_of(*arrays.dout),
                      .dQ = tensor_of(*arrays.dq),
                      .dK = tensor_of(*arrays.dk),
                      .dV = tensor_of(*arrays.dv),
                      .log_sum_exp = static_cast<const float*>(arrays.lse->data)};
  for (Tensor* tensor : {&gradients.dO, &gradients.dQ, &gradients.dK, &gradients.dV})
    if (packed) tensor->batch_stride = 0;  // as launch_args() does
  return gradients;
}

Tensors tensors_of(const Arrays& arrays) {
  const auto floats = [](const std::optional<Array>& array) {
    return array ? static_cast<const float*>(array->data) : nullptr;
  };
  return {.Q = tensor_of(arrays.q),
          .K = tensor_of(arrays.k),
          .V = tensor_of(arrays.v),
          .O = tensor_of(arrays.out),
          .scales = floats(arrays.scales),
          .log_sum_exp = arrays.lse && !arrays.dout ? static_cast<float*>(arrays.lse->data) : nullptr,
          .alibi_slopes = floats(arrays.alibi_slopes),
          .sinks = floats(arrays.sinks),
          .page_table = arrays.page_table ? static_cast<const int*>(arrays.page_table->data) : nullptr,
          .page_table_width = arrays.page_table ? static_cast<int>(arrays.page_table->shape[1]) : 0,
          .num_pages = arrays.page_table ? static_cast<int>(arrays.k.shape[0]) : 0,
          .K_new = arrays.k_new ? tensor_of(*arrays.k_new) : Tensor(),
          .V_new = arrays.v_new ? tensor_of(*arrays.v_new) : Tensor(),
          .rotary_cos = arrays.rotary_cos ? arrays.rotary_cos->data : nullptr,
          .rotary_sin = arrays.rotary_sin ? arrays.rotary_sin->data : nullptr,
          .K_scales = floats(arrays.k_descale),
          .V_scales = floats(arrays.v_descale)};
}

}  // namespace flash_ladder::python
