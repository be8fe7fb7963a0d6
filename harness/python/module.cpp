#include "python/module.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <future>
#include <tuple>
#include <type_traits>
#include <utility>

#include "host/versions.h"
#include "modules/modules.h"
#include "problem/fields.h"
#include "problem/format_bytes.h"
#include "problem/kind.h"
#include "rules/support.h"
#include "worker/cuda_check.h"

namespace nb = nanobind;

namespace flash_ladder::python {
namespace {

using AnyArray = nb::ndarray<nb::ro>;              // `out` is written to; Python has checked that it is writable
using ExportedArray = nb::ndarray<nb::array_api>;  // an object with __dlpack__ and __dlpack_device__
constexpr std::size_t kHostAlignment = 64;         // the alignment with which JAX uses memory without a copy

// nanobind passes exceptions to the translator registered last.
void translate_exception(const std::exception_ptr& exception, void* /*payload*/) {
  try {
    std::rethrow_exception(exception);
  } catch (const TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const UsageError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const OutOfMemory& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  }
}

Array array_of(const char* name, const AnyArray& from, std::string dtype) {
  Array array{
      .name = name, .dtype = std::move(dtype), .data = const_cast<void*>(from.data()), .shape = {}, .strides = {}};
  for (std::size_t i = 0; i < from.ndim(); ++i) {
    array.shape.push_back(static_cast<std::int64_t>(from.shape(i)));
    array.strides.push_back(from.stride(i));
  }
  return array;
}

nb::dict dict_of(const DeviceInfo& info) {
  nb::dict dict;
  dict["name"] = info.name;
  dict["compute_capability"] = compute_capability_name(info.compute_capability);
  dict["sm_count"] = info.sm_count;
  dict["memory_total_bytes"] = info.memory_total_bytes;
  dict["memory_free_bytes"] = info.memory_free_bytes;
  dict["l2_bytes"] = info.l2_bytes;
  dict["smem_per_cta_bytes"] = info.smem_per_cta_bytes;
  dict["driver"] = info.driver;
  return dict;
}

// Those that compute gradients, or all others, which compute O.
nb::list kernels(bool gradients) {
  nb::list names;
  for (const Version& version : versions())
    if ((version.kind == ProblemKind::backward) == gradients) names.append(label(version));
  return names;
}

nb::list configs(const std::string& kernel) {
  nb::list configurations;
  for (const Configuration& configuration : version_of(kernel, nullptr).configurations) {
    nb::dict dict;
    dict["name"] = configuration.name;
    dict["dtype"] = configuration.dtype == Dtype::e4m3   ? "float8_e4m3fn"
                    : configuration.dtype == Dtype::fp16 ? "float16"
                                                         : "bfloat16";
    dict["block_q"] = configuration.block_q;
    dict["block_kv"] = configuration.block_kv;
    dict["head_dim"] = configuration.head_dim;
    dict["head_dim_v"] = configuration.head_dim_v;
    dict["num_warps"] = configuration.num_warps;
    dict["stages"] = configuration.stages;
    dict["step_kv"] = configuration.step_kv;
    dict["smem_bytes"] = configuration.smem_bytes;
    configurations.append(dict);
  }
  return configurations;
}

void free_on_gpu(void* data) noexcept { cudaFree(data); }
void free_on_host(void* data) noexcept { std::free(data); }

// For libraries whose arrays cannot be written to after they are created.
ExportedArray empty_array(const std::vector<std::size_t>& shape, const std::string& dtype, int device, Place place) {
  const std::uint8_t element_bytes = dtype == "float32" ? 4 : 2;
  std::size_t bytes = element_bytes;
  for (const std::size_t size : shape) bytes *= size;
  bytes = std::max<std::size_t>((bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment, kHostAlignment);
  void* data = nullptr;
  if (place == Place::host)
    data = std::aligned_alloc(kHostAlignment, bytes);
  else
    data = allocate_on_gpu(device, bytes);
  if (data == nullptr)
    throw OutOfMemory(fmt::format("the output needs {} of memory", format_bytes(static_cast<double>(bytes))));
  const nb::capsule owner(data, place == Place::host ? free_on_host : free_on_gpu);
  const auto code = dtype == "bfloat16" ? nb::dlpack::dtype_code::Bfloat : nb::dlpack::dtype_code::Float;
  return {
      data,
      shape.size(),
      shape.data(),
      owner,
      nullptr,
      nb::dlpack::dtype{
          .code = static_cast<std::uint8_t>(code), .bits = static_cast<std::uint8_t>(8 * element_bytes), .lanes = 1},
      place == Place::host ? nb::device::cpu::value : nb::device::cuda::value,
      device};
}

// A launch on the virtual GPU can take hours. Python runs signal handlers, such as that of Ctrl-C, on the calling
// thread, so the launch runs on a separate one.
Answer forward_on_virtual_gpu(const Call& call, const Arrays& arrays) {
  constexpr std::chrono::milliseconds kBetweenSignals(50);
  std::atomic<bool> interrupt = false;
  auto answer = std::async(std::launch::async, [&] { return forward(call, arrays, Place::host, interrupt); });
  const auto is_running = [&] {
    const nb::gil_scoped_release others_may_run;
    return answer.wait_for(kBetweenSignals) != std::future_status::ready;
  };
  while (is_running())
    if (!interrupt && PyErr_CheckSignals() != 0) interrupt = true;
  if (interrupt) throw nb::python_error();
  return answer.get();
}

Answer forward_on_gpu(const Call& call, const Arrays& arrays) {
  const nb::gil_scoped_release others_may_run;
  return forward(call, arrays, Place::gpu, false);
}

// The fields of the problem that are arguments of their own; the others come from the arrays.
AttentionProblem asked_for(const nb::dict& fields) {
  AttentionProblem problem;
  for_each_field([&]<typename Value>(const Field<Value>& field) {
    if constexpr (!std::is_same_v<Value, Dtype>)
      if (fields.contains(field.name)) problem.*field.member = nb::cast<Value>(fields[field.name]);
  });
  return problem;
}

ProblemKind kind_named(const std::string& name) {
  for (const ProblemKind kind : {ProblemKind::forward, ProblemKind::backward, ProblemKind::decoding})
    if (describe(kind).name == name) return kind;
  throw UsageError(fmt::format("kind '{}' is unknown", name));
}

// The arrays of a call by name, and what keeps them alive.
class Handed {
 public:
  Handed(const nb::dict& given, const nb::dict& dtypes) {
    for (const auto& [name, of_cache, array] : {std::tuple{"q", "q", &arrays.q},
                                                {"k", "k_cache", &arrays.k},
                                                {"v", "v_cache", &arrays.v},
                                                {"out", "out", &arrays.out}})
      *array = take(given.contains(of_cache) ? of_cache : name, given, dtypes);
    for (const auto& [name, array] : {std::pair{"scales", &arrays.scales},
                                      {"alibi_slopes", &arrays.alibi_slopes},
                                      {"sinks", &arrays.sinks},
                                      {"lse", &arrays.lse},
                                      {"page_table", &arrays.page_table},
                                      {"lengths", &arrays.cache_lengths},
                                      {"k_new", &arrays.k_new},
                                      {"v_new", &arrays.v_new},
                                      {"rotary_cos", &arrays.rotary_cos},
                                      {"rotary_sin", &arrays.rotary_sin},
                                      {"k_descale", &arrays.k_descale},
                                      {"v_descale", &arrays.v_descale},
                                      {"dout", &arrays.dout},
                                      {"dq", &arrays.dq},
                                      {"dk", &arrays.dk},
                                      {"dv", &arrays.dv}})
      if (given.contains(name)) *array = take(name, given, dtypes);
  }

  Arrays arrays;

 private:
  Array take(const char* name, const nb::dict& given, const nb::dict& dtypes) {
    kept_.push_back(nb::cast<AnyArray>(given[name]));
    return array_of(name, kept_.back(), nb::cast<std::string>(dtypes[name]));
  }

  std::vector<AnyArray> kept_;
};

}  // namespace

void define_functions(nb::module_& module, Place place) {
  for (const Version& version : versions())
    if (const auto why = why_not_its_own_code(version)) throw nb::import_error(why->c_str());
  nb::register_exception_translator(translate_exception);
  module.def("kernels", &kernels, nb::arg("gradients"));
  module.def("configs", &configs, nb::arg("kernel"));
  module.def("device_info", [](int device) { return dict_of(device_info(device)); }, nb::arg("device"));
  module.def(
      "empty",
      [place](const std::vector<std::size_t>& shape, const std::string& dtype, int device) {
        return empty_array(shape, dtype, device, place);
      },
      nb::arg("shape"), nb::arg("dtype"), nb::arg("device"));
  module.def(
      "forward",
      [place](const nb::dict& arrays, const nb::dict& dtypes, const std::string& kernel, const std::string& config,
              std::optional<double> softmax_scale, const nb::dict& fields, int device, std::uintptr_t stream, bool wait,
              bool timed, bool only_chooses, const std::string& kind, bool deterministic) {
        const Call call{.kernel = kernel,
                        .config = config,
                        .asked = asked_for(fields),
                        .softmax_scale = softmax_scale,
                        .device = device,
                        .stream = reinterpret_cast<cudaStream_t>(stream),
                        .wait = wait,
                        .timed = timed,
                        .only_chooses = only_chooses,
                        .kind = kind_named(kind),
                        .deterministic = deterministic};
        const Handed handed(arrays, dtypes);
        const Answer answer =
            place == Place::host ? forward_on_virtual_gpu(call, handed.arrays) : forward_on_gpu(call, handed.arrays);
        return std::make_tuple(answer.findings, answer.milliseconds, answer.kernel);
      },
      nb::arg("arrays"), nb::arg("dtypes"), nb::arg("kernel"), nb::arg("config"), nb::arg("softmax_scale").none(),
      nb::arg("fields"), nb::arg("device"), nb::arg("stream"), nb::arg("wait"), nb::arg("timed"),
      nb::arg("only_chooses"), nb::arg("kind"), nb::arg("deterministic"));
}

}  // namespace flash_ladder::python
