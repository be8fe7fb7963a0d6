// What a process that runs an untrusted kernel cannot do. Each attempt is made in a child, which then reports the outcome.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "grader/isolation.h"
#include "grader/kernel_run.h"

namespace flash_ladder {
namespace {

constexpr int kDone = 0, kRefused = 1, kOther = 2;

// How `attempt`, which returns a negative number if it fails, ends in a child after `isolate`.
int outcome(const std::function<void()>& isolate, const std::function<long()>& attempt) {
  const pid_t child = fork();
  if (child == 0) {
    isolate();
    errno = 0;
    if (attempt() >= 0) _exit(kDone);
    _exit(errno == EPERM || errno == EACCES ? kRefused : kOther);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : kOther + WTERMSIG(status);
}

class Isolation : public testing::Test {
 protected:
  void SetUp() override {
    if (!missing_isolation().empty()) GTEST_SKIP() << missing_isolation().front();
    char name[] = "/tmp/isolation_test_XXXXXX";
    folder_ = mkdtemp(name);
    std::ofstream(folder_ / "mine") << "text";
    std::filesystem::create_directory(folder_ / "others");
    std::ofstream(folder_ / "others" / "file") << "secret";
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  // The isolation of a launch.
  static void compute() {
    limit_process({.memory_bytes = std::uint64_t{4} << 30, .cpu_seconds = 60, .may_write_files = false});
    hide_files({});
    forbid_system_calls(SystemCalls::compute);
  }
  // The isolation of the compiler.
  void compile() const {
    limit_process({.memory_bytes = std::uint64_t{4} << 30, .cpu_seconds = 60, .file_bytes = 1000});
    hide_files({.readable = {"/usr", "/bin", "/lib", "/lib64"}, .writable = {folder_ / "mine"}});
    forbid_system_calls(SystemCalls::compile);
  }

  std::filesystem::path folder_;
};

long open_file(const std::filesystem::path& path, int flags) { return open(path.c_str(), flags, 0600); }

long connect_to_somewhere() {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  if (made < 0) return -1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  return 0;  // even creating a socket is forbidden
}

TEST_F(Isolation, WithoutItEverythingWorks) {
  const auto nothing = [] {};
  EXPECT_EQ(outcome(nothing, [&] { return open_file(folder_ / "others" / "file", O_RDONLY); }), kDone);
  EXPECT_EQ(outcome(nothing, connect_to_somewhere), kDone);
  EXPECT_EQ(outcome(nothing, [] { return kill(getppid(), 0); }), kDone);
}

TEST_F(Isolation, ALaunchCanDoNothingButCompute) {
  const std::pair<const char*, std::function<long()>> attempts[] = {
      {"read a file", [&] { return open_file(folder_ / "others" / "file", O_RDONLY); }},
      {"write a file", [&] { return open_file(folder_ / "mine", O_WRONLY); }},
      {"make a file", [&] { return open_file(folder_ / "new", O_WRONLY | O_CREAT); }},
      {"see whether there is a file", [&] { return access((folder_ / "mine").c_str(), F_OK); }},
      {"remove a file", [&] { return unlink((folder_ / "mine").c_str()); }},
      {"change rights", [&] { return chmod((folder_ / "mine").c_str(), 0777); }},
      {"reach the network", connect_to_somewhere},
      {"make a process", [] { return static_cast<long>(fork()); }},
      {"become a program", [] { return static_cast<long>(execl("/bin/true", "true", nullptr)); }},
      {"send a signal", [] { return static_cast<long>(kill(getppid(), SIGTERM)); }},
      {"look into the parent", [] { return ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr); }},
      {"read the parent's memory", [] { return syscall(SYS_process_vm_readv, getppid(), nullptr, 0, nullptr, 0, 0); }},
      {"raise a limit",
       [] {
         const rlimit most{RLIM_INFINITY, RLIM_INFINITY};
         return static_cast<long>(setrlimit(RLIMIT_FSIZE, &most));
       }},
  };
  for (const auto& [what, attempt] : attempts) EXPECT_EQ(outcome(compute, attempt), kRefused) << what;
  EXPECT_EQ(outcome(compute, [] { return static_cast<long>(std::string(1 << 20, 'x').size()); }), kDone) << "memory";
}

TEST_F(Isolation, ACompilerSeesItsOwnFilesAlone) {
  const auto isolate = [this] { compile(); };
  const std::pair<const char*, std::function<long()>> attempts[] = {
      {"read another file", [&] { return open_file(folder_ / "others" / "file", O_RDONLY); }},
      {"read of the parent", [] { return open_file("/proc/self/environ", O_RDONLY); }},
      {"make a file", [&] { return open_file(folder_ / "new", O_WRONLY | O_CREAT); }},
      {"write among the system's", [] { return open_file("/usr/new", O_WRONLY | O_CREAT); }},
      {"remove a file", [&] { return unlink((folder_ / "mine").c_str()); }},
      {"change rights", [&] { return chmod((folder_ / "mine").c_str(), 0777); }},
      {"reach the network", connect_to_somewhere},
      {"send a signal", [] { return static_cast<long>(kill(getppid(), SIGTERM)); }},
      {"look into the parent", [] { return ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr); }},
      {"reach it by what is started",
       [&] {
         const std::string command = "exec 2>&-; read line <" + (folder_ / "others" / "file").string();
         errno = EACCES;
         return std::system(command.c_str()) == 0 ? 0L : -1L;
       }},
  };
  for (const auto& [what, attempt] : attempts) EXPECT_EQ(outcome(isolate, attempt), kRefused) << what;
  EXPECT_EQ(outcome(isolate, [&] { return open_file(folder_ / "mine", O_WRONLY | O_TRUNC); }), kDone);
  EXPECT_EQ(outcome(isolate, [] { return std::system("exit 0") == 0 ? 0L : -1L; }), kDone);
  EXPECT_EQ(outcome(isolate,
                    [&] {
                      const int file = open((folder_ / "mine").c_str(), O_WRONLY);
                      return write(file, std::string(2000, 'x').data(), 2000) == 2000 ? 0L : -1L;
                    }),
            kOther)
      << "more than the limit of a file";
}

// ---- Names, and answers of the child ----

TEST(SimpleName, LeavesOutWhatAStudentDoesNotWrite) {
  EXPECT_EQ(simple_name("_ZN12flash_ladder3v0615flash_attentionINS0_6TraitsI6__halfEEEEvNS_13AttentionArgsE"),
            "flash_attention<Traits<__half>>");
  EXPECT_EQ(simple_name("_Z6scaledPKfPfi"), "scaled");
  EXPECT_EQ(simple_name("_ZN46_GLOBAL__N__7bd0c1a6_13_submission_cu_c5e9a6d76scaledEv"), "scaled");
  EXPECT_EQ(simple_name("plain"), "plain");
}

nlohmann::json launch_of(const std::string& kernel) {
  return {{"kernel", kernel},
          {"grid", {1, 1, 1}},
          {"block", {1, 1, 1}},
          {"shared", 0},
          {"sm", 80},
          {"instructions", 1000},
          {"arguments", {{{"buffer", "y"}}}},
          {"buffers", {{"y", {{"size", 4}}}}}};
}

const char* const kPtx = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry one(.param .u64 one_param_0) {
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [one_param_0];
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry endless(.param .u64 endless_param_0) {
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [endless_param_0];
  mov.u32 %r1, 1;
again:
  add.u32 %r1, %r1, 1;
  st.global.u32 [%rd1], %r1;
  bra again;
}
)";

TEST(KernelRun, AnswersWithTheBuffersAndWhatWasCounted) {
  const RunLimits limits{.isolated = missing_isolation().empty()};
  const auto answer = run_kernel(kPtx, "submission.cu", launch_of("one"), limits);
  ASSERT_EQ(answer.at("status"), "ran") << answer;
  EXPECT_EQ(answer.at("buffers").at("y"), "01000000");
  EXPECT_EQ(answer.at("counters").at("global_store_requests"), 1);
}

TEST(KernelRun, SaysWhyAKernelCannotRun) {
  const RunLimits limits{.isolated = missing_isolation().empty()};
  EXPECT_EQ(run_kernel("score 100", "submission.cu", launch_of("one"), limits).at("status"), "refused");
  const auto other = run_kernel(kPtx, "submission.cu", launch_of("two"), limits);
  EXPECT_EQ(other.at("status"), "refused");
  EXPECT_NE(other.at("message").get<std::string>().find("it has one, endless"), std::string::npos) << other;
  auto two = launch_of("one");
  two["arguments"].push_back({{"int", 1}});
  EXPECT_EQ(run_kernel(kPtx, "submission.cu", two, limits).at("status"), "refused");
}

TEST(KernelRun, AWallTimeIsNoVerdict) {
  auto launch = launch_of("endless");
  EXPECT_EQ(run_kernel(kPtx, "submission.cu", launch, {.isolated = false}).at("findings").at(0).at("kind"),
            "endless_loop");
  launch["instructions"] = std::uint64_t{1} << 60;
  const auto late = run_kernel(kPtx, "submission.cu", launch, {.isolated = false, .wall_seconds = 1});
  EXPECT_EQ(late.at("status"), "not_graded");
  const auto busy = run_kernel(kPtx, "submission.cu", launch, {.isolated = false, .cpu_seconds = 1});
  EXPECT_EQ(busy.at("status"), "not_graded");
  EXPECT_NE(busy.at("message").get<std::string>().find("CPU time"), std::string::npos) << busy;
}

}  // namespace
}  // namespace flash_ladder
