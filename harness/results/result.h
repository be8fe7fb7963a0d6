// The outcome of one run of one version, and its JSON form (harness/results/results.schema.json).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "problem/distribution.h"
#include "problem/problem.h"
#include "results/counters.h"

namespace flash_ladder {

enum class Status {
  ok,       // ran (or was studied without a device) and nothing was wrong
  wrong,    // ran; the output does not match the reference, or there was a finding
  skipped,  // was not run: `reason` says why
  failed,   // a CUDA error, a crash, or a run that exceeded the time limit: `reason` says which
};

/// "ok", "wrong", "skipped" or "failed".
std::string to_string(Status status);
/// The inverse; nullopt for anything else.
std::optional<Status> status_from_string(const std::string& text);

/// An output element that is not within the bound.
struct Mismatch {
  std::int64_t batch, head, row, column;
  double got, expected;
};

/// The place of an element of O in registers: O_rmem[mma_m][mma_n][reg] of a lane of a warp.
struct FragmentElement {
  int warp, lane, mma_m, mma_n, reg;
};

/// A launch with inputs that were chosen to rule out where a mistake could be.
struct Experiment {
  std::string name;  // "V = 1", "2 K/V tiles"
  bool right;
};

/// What a wrong output looks like and what that suggests.
struct Diagnosis {
  std::vector<std::string> sentences;  // the most informative first
  std::vector<std::string>
      suggests;  // names of the known mistakes that produce exactly this output; if several, it may be any of them
  std::optional<FragmentElement> first;  // place of the first wrong element; nullopt if the version has no fragments
  std::vector<Experiment> experiments;
};

/// Milliseconds of single launches.
struct Milliseconds {
  double median, p10, p90;
};

/// Properties of a configuration on one architecture that are known without running it.
struct StaticStudy {
  // The largest value over all __global__ functions (01 has three).
  int registers = 0;    // per thread
  int spill_bytes = 0;  // stores + loads, per thread, as ptxas reports them
  int smem_bytes = 0;   // static + dynamic, per CTA
  int ctas_per_sm = 0;
  std::string limited_by;  // what limits ctas_per_sm: "registers", "shared memory", "threads" or "CTAs"
  // Opcode with its modifiers folded → number of instructions in the code. Empty for sm_86 and sm_89, which run the
  // code of sm_80.
  std::map<std::string, int> sass;
  // The same for one iteration of the hot loop, without the blocks in it that an iteration may skip.
  std::map<std::string, int> hot_loop_sass;
  std::map<std::string, int> hot_loop_cold_sass;  // the blocks that it may skip
  // Hash of the version's whole machine code, see source/compiled_text.h; empty if `sass` is.
  std::string sass_hash;
};

/// Where an instruction comes from: "kernels/07_ldmatrix.cu:74", then the line that calls the function that contains
/// it, and so on out to the kernel. Files of the project are named from its root, others without their folders. Empty
/// when not known.
using SourcePosition = std::vector<std::string>;

/// What the virtual GPU counted for the instructions at one position.
struct LineCounters {
  std::string kernel;  // the __global__ function: "flash_attention"
  SourcePosition position;
  Counters counters;
};

/// An error that the virtual GPU found. Repetitions in several CTAs or in a loop count as one.
struct Finding {
  std::string kind;     // "race", "out_of_bounds", …
  std::string message;  // one line
  std::string kernel;   // empty if it is not about a kernel
  SourcePosition position;
  // Where it first happened.
  std::optional<std::array<std::int64_t, 3>> cta;
  std::optional<int> warp, lane;
  std::optional<std::uint64_t> address;  // global address, or offset in shared or local memory
  SourcePosition other_position;         // the access that it collides with, if there is one
  std::vector<SourcePosition> waits;     // for an access that came too early: the last waits of the threads
  std::int64_t count = 1;                // how often
  std::string text;                      // the complete text for a reader, several lines
};

/// The state of the GPU in the middle of a benchmark, as the driver's management library reports it. nullopt: not reported.
struct Load {
  std::optional<int> sm_clock_mhz;
  std::optional<double> power_watts;
};

/// One version, one configuration, one problem.
struct Result {
  std::string kernel;  // "06", or the name of an extension
  std::string name;
  std::string config;
  std::optional<std::string> device;  // "NVIDIA H200"; nullopt if nothing ran
  AttentionProblem problem;
  Distribution data = Distribution::normal;  // the data with which it was timed, and checked last
  Status status = Status::skipped;
  std::string reason;          // empty when ok
  bool device_cannot = false;  // skipped because the device cannot run the version, whatever the problem; not in JSON

  std::vector<std::string> checked;  // the names of the inputs that were tried, including the last if it faulted
  std::optional<bool> correct;       // false if wrong, whether because of the output or of a finding
  std::optional<double> max_abs_error;
  // The largest over (batch, head) of max|out - ref| / bound: correct if at most 1.
  std::optional<double> relative_error;
  std::vector<Mismatch> mismatches;    // the first few
  std::string tile_map;                // the wrong tiles, drawn in text; empty if there are none
  std::optional<Diagnosis> diagnosis;  // of the first wrong input set; nullopt if the output is right

  std::optional<Milliseconds> ms;
  std::optional<double> tflops;
  std::optional<Load> load;          // half-way through the timing; nullopt if there was none, and in older profiles
  std::optional<Counters> counters;  // of one launch; nullopt if the virtual GPU did not count
  std::vector<LineCounters> lines;
  std::vector<emulator::Role> roles;  // of the warps of a CTA; only for a version with wgmma or TMA
  std::string ptx_hash;               // hash of the text that was counted: see source/compiled_text.h
  // One trace for each kernel of that launch, if they were requested; not in JSON: see trace_file.h.
  std::vector<std::shared_ptr<const emulator::CtaTrace>> traces;
  std::vector<Finding> findings;    // the first hundred
  std::int64_t findings_kinds = 0;  // number of different findings
  std::int64_t findings_total = 0;  // number of findings including repetitions

  std::map<std::string, StaticStudy> static_study;  // "sm_80", "sm_86", "sm_89", "sm_90"
};

/// The version's label: "06_swizzle", "causal".
std::string label(const Result& result);

/// JSON has no NaN and no infinity, and null means "not measured", so a wrong kernel's NaN is written as "nan". Reading
/// throws std::exception for anything that is not a number.
nlohmann::json number(double value);
double number(const nlohmann::json& value);
/// A finite value above 0, such as TFLOP/s. Throws std::runtime_error for any other value.
double positive_number(const nlohmann::json& value);

/// null stands for a value that was not measured; a measured NaN or infinity is "nan", "inf" or "-inf". `mismatches`,
/// `tile_map`, `diagnosis`, `findings_kinds` and `findings_total` are present only if the result is wrong, `lines` and
/// `ptx_hash` only if the virtual GPU counted, `load` only if a GPU was timed. Reading throws std::exception for
/// anything that is not a Result.
void to_json(nlohmann::json& json, const Result& result);
void from_json(const nlohmann::json& json, Result& result);
void to_json(nlohmann::json& json, const Milliseconds& ms);
void from_json(const nlohmann::json& json, Milliseconds& ms);
void to_json(nlohmann::json& json, const Load& load);
void from_json(const nlohmann::json& json, Load& load);
void to_json(nlohmann::json& json, const StaticStudy& study);
void from_json(const nlohmann::json& json, StaticStudy& study);
void to_json(nlohmann::json& json, const Mismatch& mismatch);
void from_json(const nlohmann::json& json, Mismatch& mismatch);
void to_json(nlohmann::json& json, const FragmentElement& element);
void from_json(const nlohmann::json& json, FragmentElement& element);
void to_json(nlohmann::json& json, const Experiment& experiment);
void from_json(const nlohmann::json& json, Experiment& experiment);
void to_json(nlohmann::json& json, const Diagnosis& diagnosis);
void from_json(const nlohmann::json& json, Diagnosis& diagnosis);
void to_json(nlohmann::json& json, const LineCounters& line);
void from_json(const nlohmann::json& json, LineCounters& line);
void to_json(nlohmann::json& json, const Finding& finding);
void from_json(const nlohmann::json& json, Finding& finding);

}  // namespace flash_ladder
