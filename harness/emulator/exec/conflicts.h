// Turns conflicts detected by the shadow memories into findings: what happened, why, and what the threads last waited for.
#pragma once

#include <string>

#include "emulator/checks/global_shadow.h"
#include "emulator/checks/shared_shadow.h"
#include "emulator/exec/barriers.h"
#include "emulator/report.h"

namespace flash_ladder::emulator {

class CtaExecutor;

class ConflictReporter : public ConflictSink, public GlobalConflictSink {
 public:
  explicit ConflictReporter(CtaExecutor& cta) : cta_(cta) {}

  void report(const SharedAccess& access, const Conflict& conflict) override;
  void report(const GlobalAccess& access, const GlobalConflict& conflict) override;
  void renumber(const Renumbering& renumbering) override;

 private:
  struct Words {
    std::string message, other;
  };

  void add_wait(Finding& finding, int warp, int lane, AccessNumber number, const Mbarrier* at) const;
  std::string why_in_flight(const ConflictReporter& by, const SharedAccess& access, const Conflict& conflict,
                            const Mbarrier* signalled) const;
  bool is_filled_again(const SharedAccess& access, const Conflict& conflict) const;
  ConflictReporter& reporter_of(const SharedAccess& access) const;
  Words words_for(const SharedAccess& access, const Conflict& conflict, const Mbarrier* signalled) const;

  CtaExecutor& cta_;
};

}  // namespace flash_ladder::emulator
