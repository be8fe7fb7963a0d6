// Which unordered accesses are a race, and which are not. PTX ISA, "Memory Consistency Model".
#pragma once

#include <cstdint>

namespace flash_ladder::emulator {

/// How an access interacts with those of other threads. Plain numbers, because most accesses know only whether they are
/// strong.
using Strength = std::uint8_t;
inline constexpr Strength kWeak = 0;      // plain
inline constexpr Strength kStrong = 1;    // atomic operations; relaxed, acquire, release
inline constexpr Strength kVolatile = 2;  // strong according to the ISA, but cannot hand over data inside a warp
inline constexpr Strength kPolling = 3;   // volatile, in a loop that waits until it reads a different value
// Volatile, a read and a write that together update a value (`++*p`): if two threads do so, one of the updates may be lost.
inline constexpr Strength kUpdate = 4;
// Plain, and only the first guess of a loop with atom.cas: the value that it reads is compared before it matters.
inline constexpr Strength kFirstGuess = 5;

/// Whether the access may communicate with another thread.
constexpr bool is_strong(Strength strength) { return strength != kWeak && strength != kFirstGuess; }

/// Whether two accesses of different threads are a race, if they are unordered and one is a write. `same_warp`: lanes
/// of one warp, which do not run in lockstep, so that what one lane writes with a volatile store is visible to another
/// only after __syncwarp().
constexpr bool can_race(Strength a, Strength b, bool same_warp) {
  if (a == kFirstGuess || b == kFirstGuess) return (a == kFirstGuess ? b : a) != kStrong;
  if (a == kWeak || b == kWeak) return true;
  if (a == kUpdate && b == kUpdate) return true;
  return same_warp && (a == kVolatile || a == kUpdate) && (b == kVolatile || b == kUpdate);
}

}  // namespace flash_ladder::emulator
