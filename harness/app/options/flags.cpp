#include "app/options/flags.h"

#include <fmt/format.h>

#include "app/options/grading_flags.h"
#include "host/known_sms.h"
#include "host/sm_limits.h"

namespace flash_ladder {
namespace {

// A group of --help.
class Group {
 public:
  Group(CLI::App& app, const char* name) : app_(app), name_(name) {}

  void flag(const char* name, bool& given, const std::string& help) { app_.add_flag(name, given, help)->group(name_); }

  // `type`: what --help calls the value.
  template <typename Value>
  CLI::Option& value(const char* name, Value& to, const char* type, const std::string& help) {
    return *app_.add_option(name, to, help)->type_name(type)->group(name_);
  }

 private:
  CLI::App& app_;
  const char* name_;
};

void add_what_to_do(Group group, Options& options, TypedFlags& typed) {
  group.value("--kernel", options.kernels, "TEXT",
              "Versions: 7, 07, 07_ldmatrix, ldmatrix, 05-08, 05,07 or all; extensions by name");
  group.flag("--list", typed.list,
             "List the versions, one per line, with their configurations and the TFLOP/s from profiles/");
  group
      .value("--diff", typed.diff, "A B",
             "Compare two versions: source, TFLOP/s, counters per source line, registers, SASS")
      .expected(1, 2);
  group.value("--html", options.html, "FILE",
              "With --diff: write the comparison as an HTML page, with SASS side by side (- for standard output)");
  group.flag("--sass", typed.sass, "Count the SASS instructions of --kernel by opcode and class, without running it");
  group.flag("--listing", typed.listing,
             "With --sass: list the instructions with their source lines, without addresses and registers, so that "
             "diff can compare the listings of two versions");
  group.flag("--registers", options.registers, "With --listing: include registers and source line numbers");
  group.value("--ptx", options.ptx, "LINE",
              "Show the SASS that --kernel has for a source line (171, common/ptx.h:59), a PTX line (ptx:3659) or all "
              "PTX instructions of a name (ldmatrix)");
  group.flag("--quiz", typed.quiz, "Predict the speedup of --kernel over the version before, then see the measurement");
  group.flag("--record", typed.record,
             "Measure --kernel at the standard shapes (on the virtual GPU: count) and write "
             "profiles/<device>/NN_name.json");
  group.value("--tune", options.tune, "VERSION",
              "Time all configurations of one version for a problem; the fastest is stored in "
              "profiles/<device>/tuning.json and used from then on");
  group.value("--debug", options.debug, "VERSION",
              "Compare O of one version with float64 after each K/V tile, and show P and the layouts; if O is wrong, "
              "name the first wrong tile, row, column, lane and register. Of gradients, compare S, P, dP, dS, dV, dK "
              "and dQ of a tile of queries and a tile of keys, and name the first wrong step");
}

void add_where(Group group, Options& options, TypedFlags& typed) {
  group.value("--device", typed.device, "DEVICE",
              "auto (a GPU of sm_80 or newer, otherwise the virtual GPU), gpu, gpu:N or emulator (the virtual GPU)");
  group.value("--sm", typed.sm, "SM",
              fmt::format("{}: the SM whose limits the virtual GPU and the static study assume (the GPU's own, "
                          "otherwise {})",
                          known_sms(" or "), kDefaultSm));
  group.value("--config", options.config, "NAME",
              "One of the version's configurations (the one that --tune found, otherwise the first that fits the "
              "device)");
}

void add_inputs(Group group, TypedFlags& typed) {
  group.value("--data", typed.data, "NAME",
              fmt::format("Distribution of Q, K and V ({}): {}", to_string(Distribution::normal), all_distributions()));
  group.value("--seed", typed.seed, "N", "Seed of the random inputs (0)");
}

void add_how(Group group, Options& options, TypedFlags& typed) {
  group.flag("--no-check", typed.no_check, "Do not compare with the reference");
  group.flag("--no-bench", typed.no_bench, "Do not time");
  group.value("--repeat", typed.repeat, "N", "Timed launches (20)");
  group.value("--json", options.json, "FILE",
              "Write the results as JSON (- for standard output, which then contains nothing else)");
  group.value("--row", typed.row, "N", "--debug: the query to show (the first wrong one, otherwise 0)");
  group.value("--head", typed.head, "N", "--debug: the head to show (the first wrong one, otherwise 0)");
  group.flag("--lines", options.lines, "Virtual GPU: show the counters of all source lines, not only the costliest");
  group.flag("--all-findings", options.all_findings,
             "Virtual GPU: show all findings, not only the first, from which the others may follow");
  group.value("--trace", options.trace, "FILE",
              "Virtual GPU: record what each warp of CTA 0 does, for https://ui.perfetto.dev (docs/virtual_gpu.md)");
  group.value("--max-instructions", typed.max_instructions, "N",
              "Virtual GPU: stop a CTA, as an endless loop, after this many warp instructions");
  group.value("--timeout", typed.timeout, "SECONDS",
              "Kill a version that makes no progress for this long (60; virtual GPU: 600)");
  group
      .value("--profiles", typed.profiles, "DIR | A B",
             "Where profiles are read and written (the source tree's profiles/). With two files, or two folders and "
             "--kernel: compare two recordings of one version")
      .expected(1, 2);
}

}  // namespace

void add_flags(CLI::App& app, Options& options, TypedFlags& typed) {
  add_what_to_do({app, "What to do"}, options, typed);
  add_where({app, "Where"}, options, typed);
  typed.problem.emplace(app);
  add_inputs({app, "The problem"}, typed);
  add_how({app, "How"}, options, typed);
  add_grading_flags(app, options.grading);
  // For the tests: an empty group hides them from --help.
  app.add_option("--worker", options.paths.worker)->group("");
  app.add_option("--emulator-worker", options.paths.emulator_worker)->group("");
  app.add_option("--source", typed.source)->group("");
}

}  // namespace flash_ladder
