#include "emulator/operations/atomics.h"

#include <algorithm>
#include <bit>

#include "emulator/lanes/float_bits.h"

namespace flash_ladder::emulator {
namespace {

template <typename T>
std::uint64_t integer(AtomicOperation operation, std::uint64_t old_bits, std::uint64_t operand_bits,
                      std::uint64_t second) {
  const T old = static_cast<T>(old_bits), operand = static_cast<T>(operand_bits);
  using U = std::make_unsigned_t<T>;
  switch (operation) {
    case AtomicOperation::add:
      return static_cast<U>(static_cast<U>(old) + static_cast<U>(operand));
    case AtomicOperation::min:
      return static_cast<U>(std::min(old, operand));
    case AtomicOperation::max:
      return static_cast<U>(std::max(old, operand));
    case AtomicOperation::and_:
      return static_cast<U>(old & operand);
    case AtomicOperation::or_:
      return static_cast<U>(old | operand);
    case AtomicOperation::xor_:
      return static_cast<U>(old ^ operand);
    case AtomicOperation::exch:
      return static_cast<U>(operand);
    case AtomicOperation::cas:
      return static_cast<U>(old == operand ? static_cast<T>(second) : old);
    case AtomicOperation::inc:
      return static_cast<U>(old >= operand ? T{0} : static_cast<T>(old + 1));
    case AtomicOperation::dec:
      return static_cast<U>(old == 0 || old > operand ? operand : static_cast<T>(old - 1));
  }
  return old_bits;
}

template <typename T>
std::uint16_t sum(std::uint64_t a, std::uint64_t b) {
  return from_float<T>(to_float(T{static_cast<std::uint16_t>(a)}) + to_float(T{static_cast<std::uint16_t>(b)})).bits;
}

std::uint64_t floating_sum(ptx::Type type, bool flushes, std::uint64_t a, std::uint64_t b) {
  if (type.bits == 64) return bits_of(double_of(a) + double_of(b));
  const auto a32 = static_cast<std::uint32_t>(a), b32 = static_cast<std::uint32_t>(b);
  if (type.bits == 32 && !type.packed) {
    const auto value = [&](float x) { return flushes ? flushed<true>(x) : x; };
    return bits_of(canonical(value(value(float_of(a32)) + value(float_of(b32)))));
  }
  const bool bf = type.kind == 'h';
  const std::uint32_t low = bf ? sum<bf16>(a, b) : sum<f16>(a, b);
  if (!type.packed) return low;
  const std::uint32_t high = bf ? sum<bf16>(a >> 16, b >> 16) : sum<f16>(a >> 16, b >> 16);
  return (high << 16) | low;
}

}  // namespace

std::uint64_t apply_atomic(AtomicOperation operation, ptx::Type type, ptx::Space space, std::uint64_t old,
                           std::uint64_t operand, std::uint64_t second) {
  if (type.kind == 'f' || type.kind == 'h') return floating_sum(type, space == ptx::Space::global, old, operand);
  const bool is_signed = type.kind == 's';
  switch (type.bits) {
    case 16:
      return integer<std::uint16_t>(operation, old, operand, second);
    case 32:
      return is_signed ? integer<std::int32_t>(operation, old, operand, second)
                       : integer<std::uint32_t>(operation, old, operand, second);
    default:
      return is_signed ? integer<std::int64_t>(operation, old, operand, second)
                       : integer<std::uint64_t>(operation, old, operand, second);
  }
}

}  // namespace flash_ladder::emulator
