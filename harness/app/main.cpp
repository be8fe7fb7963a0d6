// The harness: checks, times and dissects the versions of the ladder.
#include <exception>

#include "app/child_process.h"
#include "app/comparison.h"
#include "app/options.h"
#include "app/output.h"
#include "app/recording.h"
#include "app/sass_report.h"
#include "app/study.h"
#include "app/tuning.h"
#include "app/version_list.h"
#include "errors.h"

namespace {

int run(const flash_ladder::Options& options) {
  using flash_ladder::Action;
  switch (options.action) {
    case Action::list:
      return list_versions(options);
    case Action::diff:
      return compare(options);
    case Action::sass:
      return report_sass(options);
    case Action::record:
      return record(options);
    case Action::tune:
      return tune(options);
    case Action::study:
      break;
  }
  return study(options);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace flash_ladder;
  constexpr int kInterruptedBySignal = 130;  // as shells report it
  try {
    turn_interrupts_into_exceptions();
    const auto options = parse_options(argc, argv);
    return options ? run(*options) : kExitOk;
  } catch (const UsageError& error) {
    complain(error.what());
    return kExitUsage;
  } catch (const Interrupted& error) {
    complain(error.what());
    return kInterruptedBySignal;
  } catch (const std::exception& error) {
    complain(error.what());
    return kExitUnavailable;
  }
}
