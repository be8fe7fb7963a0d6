// Runs submissions, and the compiler on them, in isolation. harness/grader/grade.py starts it:
//
//   harness-grader missing                        prints a JSON list of what this machine lacks for isolation
//   harness-grader sandbox [limits] -- COMMAND    becomes COMMAND, which sees only the named files
//   harness-grader run                            {"ptx", "source", "isolated", "launches": […]} on stdin, the answers on stdout
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "errors.h"
#include "grader/isolation.h"
#include "grader/kernel_run.h"
#include "json_members.h"

namespace {

using namespace flash_ladder;

struct Sandbox {
  ProcessLimits limits;
  VisibleFiles visible;
  bool isolated = true;
  std::vector<std::string> command;
};

[[noreturn]] void become(const Sandbox& sandbox) {
  limit_process(sandbox.limits);
  if (sandbox.isolated) {
    hide_files(sandbox.visible);
    forbid_system_calls(SystemCalls::compile);
  }
  std::vector<char*> arguments;
  for (const std::string& argument : sandbox.command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  throw UnavailableError(fmt::format("{} could not be started: {}", sandbox.command.front(), std::strerror(errno)));
}

nlohmann::json run(const nlohmann::json& request) {
  const std::string path = request.at("ptx");
  std::ifstream file(path, std::ios::binary);
  const std::string ptx((std::istreambuf_iterator<char>(file)), {});
  if (!file) throw UnavailableError(fmt::format("{} cannot be read", path));
  RunLimits limits;
  read_known(request, "isolated", limits.isolated);
  read_known(request, "memory_bytes", limits.memory_bytes);
  read_known(request, "cpu_seconds", limits.cpu_seconds);
  read_known(request, "wall_seconds", limits.wall_seconds);
  auto answers = nlohmann::json::array();
  for (const auto& launch : request.at("launches"))
    answers.push_back(run_kernel(ptx, request.at("source"), launch, limits));
  return answers;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs untrusted submissions in isolation.", "harness-grader");
  app.require_subcommand(1);
  const auto* missing = app.add_subcommand("missing", "What this machine lacks to isolate a process");
  const auto* runs = app.add_subcommand("run", "Launches kernels on the virtual GPU");
  auto* encloses = app.add_subcommand("sandbox", "Runs a command that sees only the named files");
  Sandbox sandbox;
  bool open = false;
  encloses->add_option("--memory", sandbox.limits.memory_bytes, "Bytes of address space");
  encloses->add_option("--cpu", sandbox.limits.cpu_seconds, "Seconds of CPU time");
  encloses->add_option("--file", sandbox.limits.file_bytes, "Bytes of a file that it writes");
  encloses->add_option("--read", sandbox.visible.readable, "A folder or file to read")->allow_extra_args(false);
  encloses->add_option("--write", sandbox.visible.writable, "A folder or file to read and write")
      ->allow_extra_args(false);
  encloses->add_flag("--open", open, "Only limits, no isolation");
  encloses->add_option("command", sandbox.command)->required();
  try {
    app.parse(argc, argv);
    if (*missing) std::cout << nlohmann::json(missing_isolation()).dump() << '\n';
    if (*runs) {
      const std::string request((std::istreambuf_iterator<char>(std::cin)), {});
      std::cout << run(nlohmann::json::parse(request)).dump() << '\n';
    }
    if (*encloses) {
      sandbox.isolated = !open;
      become(sandbox);
    }
    if (!std::cout.flush()) throw UnavailableError("the answer could not be written");
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  } catch (const std::exception& error) {
    std::cerr << "harness-grader: " << error.what() << '\n';
    return kExitUnavailable;
  }
}
