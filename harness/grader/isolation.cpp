#include "grader/isolation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <span>
#include <system_error>

namespace flash_ladder {
namespace {

// Landlock, from the kernel's documentation (userspace-api/landlock). The headers of many systems are older than their
// kernels.
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;  // on all architectures
constexpr std::uint32_t kVersion = 1, kRulePathBeneath = 1;
struct RulesetAttributes {
  std::uint64_t files = 0, network = 0, scoped = 0;
};
struct [[gnu::packed]] PathBeneath {
  std::uint64_t allowed = 0;
  std::int32_t parent = -1;
};
enum FileRight : std::uint64_t {
  kExecute = 1 << 0,
  kWriteFile = 1 << 1,
  kReadFile = 1 << 2,
  kReadDirectory = 1 << 3,
  kMakeAndRemove = 0x1ff0,  // files, folders, sockets, links …
  kRefer = 1 << 13,         // since version 2: rename between folders
  kTruncate = 1 << 14,      // since version 3
  kIoctl = 1 << 15,         // since version 5
};
constexpr std::uint64_t kTcp = 0x3;      // since version 4: bind, connect
constexpr std::uint64_t kOutside = 0x3;  // since version 6: abstract sockets, signals

int landlock_version() { return static_cast<int>(syscall(kCreateRuleset, nullptr, 0, kVersion)); }

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor() {
    if (number_ >= 0) close(number_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

void allow(const FileDescriptor& ruleset, const std::filesystem::path& path, std::uint64_t rights) {
  const FileDescriptor opened(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status{};
  if (opened.get() < 0 || fstat(opened.get(), &status) != 0) return;  // does not exist
  constexpr std::uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate | kIoctl;
  if (!S_ISDIR(status.st_mode)) rights &= kOfFiles;
  const PathBeneath rule{.allowed = rights, .parent = opened.get()};
  if (syscall(kAddRule, ruleset.get(), kRulePathBeneath, &rule, 0) != 0) fail("landlock_add_rule");
}

void set_limit(int resource, std::uint64_t value, std::uint64_t grace = 0) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) fail("getrlimit");
  limit.rlim_max = std::min<rlim_t>(value + grace, limit.rlim_max);
  limit.rlim_cur = std::min<rlim_t>(value, limit.rlim_max);
  if (setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) fail("setrlimit");
}

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;  // unknown: missing_isolation() reports it
#endif

constexpr auto kCompute = std::to_array<std::uint32_t>({
    SYS_read,           SYS_write,
    SYS_writev,         SYS_close,
    SYS_fstat,          SYS_lseek,
    SYS_mmap,           SYS_munmap,
    SYS_mremap,         SYS_mprotect,
    SYS_madvise,        SYS_brk,
    SYS_futex,          SYS_exit,
    SYS_exit_group,     SYS_rt_sigaction,
    SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_sigaltstack,    SYS_clock_gettime,
    SYS_gettimeofday,   SYS_getrandom,
    SYS_sched_yield,    SYS_sched_getaffinity,
    SYS_getpid,         SYS_gettid,
    SYS_sysinfo,        SYS_restart_syscall,
    SYS_nanosleep,      SYS_clock_nanosleep,
    SYS_getrlimit,
#ifdef SYS_rseq
    SYS_rseq,
#endif
});

// A compiler, its driver and their shell need none of these.
constexpr auto kNotForCompilers = std::to_array<std::uint32_t>({
    // the network, and other ways out
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_sendto,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_shmget,
    SYS_shmat,
    SYS_msgget,
    SYS_semget,
    SYS_mq_open,
    425 /* io_uring_setup */,
    426,
    427,
    // other processes
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    424 /* pidfd_send_signal */,
    434 /* pidfd_open */,
    438 /* pidfd_getfd */,
    SYS_setpriority,
    SYS_sched_setscheduler,
    SYS_sched_setaffinity,
    // not covered by Landlock: permissions, owners, times, attributes
    SYS_fchmod,
    SYS_fchmodat,
    452 /* fchmodat2 */,
    SYS_fchown,
    SYS_fchownat,
    SYS_utimensat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    SYS_truncate,
    SYS_mknodat,
#ifdef SYS_chmod
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_mknod,
#endif
    // the system
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_userfaultfd,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_acct,
    SYS_quotactl,
    SYS_syslog,
    SYS_personality,
    428 /* open_tree */,
    429 /* move_mount */,
    430 /* fsopen */,
    431,
    432,
    433,
    442 /* mount_setattr */,
});

// Checks one call: if it is for another architecture, the process ends; whether it is in the list decides whether it is
// allowed or fails.
std::vector<sock_filter> filter(std::span<const std::uint32_t> calls, bool listed_are_allowed) {
  const auto statement = [](unsigned code, std::uint32_t k) {
    return sock_filter{static_cast<std::uint16_t>(code), 0, 0, k};
  };
  const auto jump = [](unsigned code, std::uint32_t k, unsigned yes, unsigned no) {
    return sock_filter{static_cast<std::uint16_t>(code), static_cast<std::uint8_t>(yes), static_cast<std::uint8_t>(no),
                       k};
  };
  constexpr std::uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;
  std::vector<sock_filter> program{
      statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      jump(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
#if defined(__x86_64__)
  constexpr std::uint32_t kX32 = 0x40000000;  // the same calls under different numbers
  program.push_back(jump(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1));
  program.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
#endif
  for (const std::uint32_t call : calls) {
    program.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(statement(BPF_RET | BPF_K, listed_are_allowed ? SECCOMP_RET_ALLOW : kRefuse));
  }
  program.push_back(statement(BPF_RET | BPF_K, listed_are_allowed ? kRefuse : SECCOMP_RET_ALLOW));
  return program;
}

}  // namespace

std::vector<std::string> missing_isolation() {
  std::vector<std::string> missing;
  if (const int version = landlock_version(); version < 3)
    missing.push_back(
        version < 0
            ? fmt::format("Landlock ({}), which restricts a process to some files; Linux has had it since 5.13, "
                          "unless it is turned off (boot option lsm=) or forbidden by a container",
                          std::generic_category().message(errno))
            : fmt::format("Landlock of version 3 (this is version {}), which also prevents truncating files; Linux "
                          "has had it since 6.2",
                          version));
  const std::uint32_t action = SECCOMP_RET_KILL_PROCESS;
  if (kArchitecture == 0)
    missing.emplace_back("a list of system calls for this machine's architecture; there is one for x86-64 and AArch64");
  else if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0)
    missing.push_back(fmt::format("seccomp ({}), which blocks system calls, including those of the network",
                                  std::generic_category().message(errno)));
  return missing;
}

void limit_process(const ProcessLimits& limits) {
  set_limit(RLIMIT_CORE, 0);
  if (limits.memory_bytes != 0) set_limit(RLIMIT_AS, limits.memory_bytes);
  // At the second limit the process gets SIGKILL, which does not reveal the cause.
  if (limits.cpu_seconds != 0) set_limit(RLIMIT_CPU, limits.cpu_seconds, /*grace=*/2);
  if (!limits.may_write_files)
    set_limit(RLIMIT_FSIZE, 0);
  else if (limits.file_bytes != 0)
    set_limit(RLIMIT_FSIZE, limits.file_bytes);
}

void hide_files(const VisibleFiles& visible) {
  const int version = landlock_version();
  if (version < 1) fail("landlock_create_ruleset");
  constexpr std::uint64_t kRead = kExecute | kReadFile | kReadDirectory;
  RulesetAttributes attributes;
  attributes.files = kRead | kWriteFile | kMakeAndRemove;
  if (version >= 2) attributes.files |= kRefer;
  if (version >= 3) attributes.files |= kTruncate;
  if (version >= 5) attributes.files |= kIoctl;
  if (version >= 4) attributes.network = kTcp;
  if (version >= 6) attributes.scoped = kOutside;
  const std::size_t known = version >= 6   ? sizeof(attributes)
                            : version >= 4 ? offsetof(RulesetAttributes, scoped)
                                           : offsetof(RulesetAttributes, network);
  const FileDescriptor ruleset(static_cast<int>(syscall(kCreateRuleset, &attributes, known, 0)));
  if (ruleset.get() < 0) fail("landlock_create_ruleset");
  for (const auto& path : visible.readable) allow(ruleset, path, kRead);
  for (const auto& path : visible.writable) allow(ruleset, path, attributes.files & ~std::uint64_t{kIoctl});
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("prctl(PR_SET_NO_NEW_PRIVS)");
  if (syscall(kRestrictSelf, ruleset.get(), 0) != 0) fail("landlock_restrict_self");
}

void forbid_system_calls(SystemCalls allowed) {
  std::vector<sock_filter> program =
      allowed == SystemCalls::compute ? filter(kCompute, true) : filter(kNotForCompilers, false);
  const sock_fprog prepared{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("prctl(PR_SET_NO_NEW_PRIVS)");
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prepared) != 0) fail("seccomp");
}

}  // namespace flash_ladder
