// The harness, which checks, times and disassembles the versions of the ladder.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <exception>

#include "app/compare/comparison.h"
#include "app/compare/two_recordings.h"
#include "app/debug/debug.h"
#include "app/grade/grading.h"
#include "app/list/version_list.h"
#include "app/options/options.h"
#include "app/options/output.h"
#include "app/quiz/quiz.h"
#include "app/record/record.h"
#include "app/run/child_process.h"
#include "app/run/kernel_code.h"
#include "app/sass/listing.h"
#include "app/sass/sass_report.h"
#include "app/study/study.h"
#include "app/tune/tune.h"
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
    case Action::listing:
      return list_sass(options);
    case Action::ptx:
      return follow_ptx(options);
    case Action::quiz:
      return quiz(options);
    case Action::recordings:
      return compare_recordings(options);
    case Action::record:
      return record(options);
    case Action::tune:
      return tune(options);
    case Action::debug:
      return debug(options);
    case Action::grade:
      become_grader(options);
    case Action::study:
      break;
  }
  return study(options);
}

// If the caller closed a standard stream, the next file to be opened would take over its number and receive what is
// printed. So /dev/null takes the number, opened in the wrong direction: each use then fails, as it does on a closed
// stream.
void fill_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) == -1) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace flash_ladder;
  constexpr int kInterruptedBySignal = 130;  // the code by which shells report it
  fill_closed_streams();
  try {
    turn_interrupts_into_exceptions();
    const auto options = parse_options(argc, argv);
    if (!options) return kExitOk;
    announce_kernels();
    const int code = run(for_track(*options));
    return code == kExitOk && any_left_out() ? static_cast<int>(kExitUnavailable) : code;
  } catch (const UsageError& error) {
    complain(error.what());
    return kExitUsage;
  } catch (const Interrupted& error) {
    complain(error.what());
    return kInterruptedBySignal;
  } catch (const ReaderGone&) {
    // Handle the signal as if it had not been held back until temporary files were removed.
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
    return kExitUnavailable;
  } catch (const std::exception& error) {
    complain(error.what());
    return kExitUnavailable;
  }
}
