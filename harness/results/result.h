// What one run of one version found, and its JSON form (harness/results/results.schema.json).
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
  wrong,    // ran; the output is not what the reference says, or there was a finding
  skipped,  // was not run: `reason` says why
  failed,   // a CUDA error, a crash, or no end within the time limit: `reason` says which
};

/// "ok", "wrong", "skipped" or "failed".
std::string to_string(Status status);
/// The inverse; nullopt for anything else.
std::optional<Status> status_from_string(const std::string& text);

/// One output element that is not within the bound.
struct Mismatch {
  std::int64_t batch, head, row, column;
  double got, expected;
};

/// Who holds an element of O in registers: O_rmem[mma_m][mma_n][reg] of a lane of a warp.
struct FragmentElement {
  int warp, lane, mma_m, mma_n, reg;
};

/// A launch with inputs that were chosen to tell where a mistake is not.
struct Experiment {
  std::string name;  // "V = 1", "2 K/V tiles"
  bool right;
};

/// What a wrong output looks like and what that suggests.
struct Diagnosis {
  std::vector<std::string> sentences;  // the most telling first
  std::vector<std::string>
      suggests;  // names of the known mistakes that give this very output; more than one: any of them
  std::optional<FragmentElement> first;  // of the first wrong element; nullopt where the version has no fragments
  std::vector<Experiment> experiments;
};

/// Milliseconds of single launches.
struct Milliseconds {
  double median, p10, p90;
};

/// What can be said of a configuration without running it, for one architecture.
struct StaticStudy {
  // Per __global__ function the larger of all (01 has three).
  int registers = 0;    // per thread
  int spill_bytes = 0;  // stores + loads, per thread, as ptxas reports them
  int smem_bytes = 0;   // static + dynamic, per CTA
  int ctas_per_sm = 0;
  std::string
      limited_by;  // what keeps ctas_per_sm from being larger: "registers", "shared memory", "threads" or "CTAs"
  // Opcode with its modifiers folded → number of instructions in the code. Empty for sm_86 and sm_89, which run sm_80's code.
  std::map<std::string, int> sass;
  // The same for one iteration of the hot loop, without the blocks in it that an iteration may pass by.
  std::map<std::string, int> hot_loop_sass;
  std::map<std::string, int> hot_loop_cold_sass;  // those blocks
  // Of the version's whole machine code, see source/compiled_text.h; empty where sass is.
  std::string sass_hash;
};

/// Where an instruction comes from: "kernels/07_ldmatrix.cu:74", then the line that calls the function that it is in, and so on
/// out to the kernel. Files of the project are named from its root, others without their folders. Empty when not known.
using SourcePosition = std::vector<std::string>;

/// What the virtual GPU counted for the instructions of one position.
struct LineCounters {
  std::string kernel;  // the __global__ function: "flash_attention"
  SourcePosition position;
  Counters counters;
};

/// What the virtual GPU found wrong. The same in several CTAs, or again and again in a loop, is one.
struct Finding {
  std::string kind;     // "race", "out_of_bounds", …
  std::string message;  // one line
  std::string kernel;   // empty when it is not about one
  SourcePosition position;
  // Where it happened first.
  std::optional<std::array<std::int64_t, 3>> cta;
  std::optional<int> warp, lane;
  std::optional<std::uint64_t> address;  // global address, or offset in shared or local memory
  SourcePosition other_position;         // of the access that it collides with, where there is one
  std::vector<SourcePosition> waits;     // of an access that came too early: the last waits of the threads
  std::int64_t count = 1;                // how often
  std::string text;                      // all of it, for a reader; some lines
};

/// The GPU in the middle of a benchmark, as the driver's management library reports it. nullopt: it does not say.
struct Load {
  std::optional<int> sm_clock_mhz;
  std::optional<double> power_watts;
};

/// One version, one configuration, one problem.
struct Result {
  std::string kernel;  // "06", or the name of an extension
  std::string name;
  std::string config;
  std::optional<std::string> device;  // "NVIDIA H200"; nullopt when nothing ran
  AttentionProblem problem;
  Distribution data = Distribution::normal;  // that it was timed with, and checked with last
  Status status = Status::skipped;
  std::string reason;          // empty when ok
  bool device_cannot = false;  // skipped, since the device cannot run the version whatever the problem; not in JSON

  std::vector<std::string> checked;  // the inputs that were tried, by name; the last, if it faulted, too
  std::optional<bool> correct;       // false when wrong, whether by the output or by a finding
  std::optional<double> max_abs_error;
  // The largest over (batch, head) of max|out - ref| / bound: correct when at most 1.
  std::optional<double> relative_error;
  std::vector<Mismatch> mismatches;    // the first few
  std::string tile_map;                // which tiles are wrong, drawn in text; empty when none
  std::optional<Diagnosis> diagnosis;  // of the first set that is wrong; nullopt where its output is right

  std::optional<Milliseconds> ms;
  std::optional<double> tflops;
  std::optional<Load> load;          // half-way through the timing; nullopt where there was none, and in older profiles
  std::optional<Counters> counters;  // of one launch; nullopt where the virtual GPU did not count
  std::vector<LineCounters> lines;
  std::vector<emulator::Role> roles;  // of the warps of a CTA; only of a version with wgmma or TMA
  std::string ptx_hash;               // of the text that was counted: see source/compiled_text.h
  // One for each kernel of that launch, where they were asked for; not in JSON: see trace_file.h.
  std::vector<std::shared_ptr<const emulator::CtaTrace>> traces;
  std::vector<Finding> findings;    // the first hundred
  std::int64_t findings_kinds = 0;  // all that differ
  std::int64_t findings_total = 0;  // all, with repetitions

  std::map<std::string, StaticStudy> static_study;  // "sm_80", "sm_86", "sm_89", "sm_90"
};

/// The version's label: "06_swizzle", "causal".
std::string label(const Result& result);

/// JSON has no NaN and no infinity, and null means "not measured": a wrong kernel's NaN has to be told from that, and is "nan".
/// Reading throws std::exception for what is no number.
nlohmann::json number(double value);
double number(const nlohmann::json& value);
/// TFLOP/s, or something else that is finite and above 0. Throws std::runtime_error for what is not.
double positive_number(const nlohmann::json& value);

/// null stands for what was not measured; a NaN or an infinity that was is "nan", "inf" or "-inf". `mismatches`, `tile_map`,
/// `diagnosis`, `findings_kinds` and `findings_total` are there only when the result is wrong, `lines` and `ptx_hash` only when
/// the virtual GPU counted, `load` only when a GPU was timed. Reading throws std::exception for anything that is not a Result.
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
