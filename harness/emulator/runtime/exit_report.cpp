// For programs that do not know about the virtual GPU: prints its findings at exit, and makes the exit code 1 if there
// was a finding or a kernel could not be run. A program gets this behaviour by being linked with this object, which
// scripts/emulate does.
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

#include "emulator/runtime/virtual_runtime.h"

namespace flash_ladder::emulator::runtime {
namespace {

constexpr std::size_t kMaxPrinted = 10;

/// Whether there was something to print.
bool print_findings() {
  const Findings found = findings();
  if (found.total == 0) return false;
  std::fflush(nullptr);
  std::cout.flush();
  std::fprintf(stderr, "\nvirtual GPU: %" PRIu64 " kind%s of mistake found\n", found.kinds,
               found.kinds == 1 ? "" : "s");
  const std::size_t printed = std::min(found.kept.size(), kMaxPrinted);
  for (std::size_t i = 0; i < printed; ++i) std::fprintf(stderr, "\n%s\n", format(found.kept[i]).c_str());
  if (found.kinds > printed) std::fprintf(stderr, "\n… and %" PRIu64 " more\n", found.kinds - printed);
  return true;
}

void report_at_exit() {
  // exit() cannot be called again from here, and nothing else is left to run after this.
  if (!print_findings() && !kernels_not_run()) return;
  std::fflush(nullptr);
  std::cout.flush();
  _exit(EXIT_FAILURE);
}

// The cause of a crash of the host code may be among the findings.
void report_crash(int signal, siginfo_t* info, void* /*context*/) {
  if (signal == SIGSEGV && host_touched(info->si_addr)) return;  // the program continues
  std::signal(signal, SIG_DFL);
  alarm(5);  // in case a lock was held at the crash
  // A processor can never map a device address. x86 does not report which address it was, only that it was one of this
  // kind.
  if (signal == SIGSEGV && (info->si_code == SI_KERNEL || reinterpret_cast<Address>(info->si_addr) >> 48 != 0)) {
    std::fputs(
        "virtual GPU: the host code used an address that is not valid on the host. Device memory (cudaMalloc) cannot "
        "be "
        "read or written by the host: copy it with cudaMemcpy.\n",
        stderr);
  }
  print_findings();
  std::raise(signal);
}

// Ctrl-C: prints the findings so far, including those of the running launch, which returns here when it has ended. A
// second Ctrl-C does not wait for that.
void report_interruption(int signal) {
  static volatile std::sig_atomic_t asked = 0;
  if (asked == 0 && interrupt_launch()) {
    asked = 1;
    return;
  }
  std::signal(signal, SIG_DFL);
  alarm(5);
  std::fputs("\nvirtual GPU: interrupted\n", stderr);
  print_findings();
  std::raise(signal);
}

// Before all other initialisers, so that report_at_exit() is the last thing to run.
__attribute__((constructor(101))) void install() {
  try {
    settings();  // reads the settings now, not in the middle of the run
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "virtual GPU: %s\n", error.what());
    std::exit(2);
  }
  std::atexit(report_at_exit);
  struct sigaction action{};
  action.sa_sigaction = report_crash;
  action.sa_flags = SA_SIGINFO;
  for (const int signal : {SIGSEGV, SIGABRT}) sigaction(signal, &action, nullptr);
  std::signal(SIGINT, report_interruption);
  // scripts/emulate needs the program to end with it, as if through Ctrl-C.
  if (const char* parent = std::getenv("FLASH_LADDER_PARENT"); parent != nullptr && std::to_string(getppid()) == parent)
    prctl(PR_SET_PDEATHSIG, SIGINT);
}

}  // namespace
}  // namespace flash_ladder::emulator::runtime
