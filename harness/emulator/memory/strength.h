// Which accesses are a race although nothing orders them, and which are not. PTX ISA, "Memory Consistency Model".
#pragma once

#include <cstdint>

namespace flash_ladder::emulator {

/// How an access speaks to those of other threads. Numbers, since most of those who make an access know only whether it is strong.
using Strength = std::uint8_t;
inline constexpr Strength kWeak = 0;      // plain
inline constexpr Strength kStrong = 1;    // atomic operations; relaxed, acquire, release
inline constexpr Strength kVolatile = 2;  // strong to the ISA, but no way to hand over data inside a warp
inline constexpr Strength kPolling = 3;   // volatile, of a loop that waits until it reads something else
// Volatile, of a read and a write that together change what is there (`++*p`): two threads that do so may lose one of the changes.
inline constexpr Strength kUpdate = 4;
// Plain, and only a guess with which a loop with atom.cas begins: what it reads is compared before it matters.
inline constexpr Strength kFirstGuess = 5;

/// Whether it may be that another thread is told something with it, or tells.
constexpr bool is_strong(Strength strength) { return strength != kWeak && strength != kFirstGuess; }

/// Whether two accesses of different threads are a race, if nothing orders them and one is a write. `same_warp`: lanes of one warp,
/// which do not run in step, so that what one has written with a volatile store is there for another only after __syncwarp().
constexpr bool can_race(Strength a, Strength b, bool same_warp) {
  if (a == kFirstGuess || b == kFirstGuess) return (a == kFirstGuess ? b : a) != kStrong;
  if (a == kWeak || b == kWeak) return true;
  if (a == kUpdate && b == kUpdate) return true;
  return same_warp && (a == kVolatile || a == kUpdate) && (b == kVolatile || b == kUpdate);
}

}  // namespace flash_ladder::emulator
