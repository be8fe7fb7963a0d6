// Loads, stores and atomics. PTX ISA, "State Spaces", "ld", "st", "atom".
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/definedness.h"
#include "emulator/exec/divergence.h"
#include "emulator/lanes/accesses.h"
#include "emulator/operations/atomics.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;
using Kind = Operand::Kind;

// One element per lane from memory to a register.
template <typename Element, typename Lane>
void load_element(std::byte* registers, std::int32_t to, const std::byte* const* from, std::size_t offset,
                  std::uint32_t mask) {
  Lane* lanes = reinterpret_cast<Lane*>(registers + to);
  if (mask == kAllLanes) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      Element value;
      std::memcpy(&value, from[lane] + offset, sizeof value);
      lanes[lane] = static_cast<Lane>(value);
    }
    return;
  }
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Element value;
    std::memcpy(&value, from[lane] + offset, sizeof value);
    lanes[lane] = static_cast<Lane>(value);
  }
}

template <typename Element, typename Lane>
void store_element(const std::byte* registers, std::int32_t from, std::byte* const* to, std::size_t offset,
                   std::uint32_t mask) {
  const Lane* lanes = reinterpret_cast<const Lane*>(registers + from);
  const auto store = [&](int lane) {
    const Element value = static_cast<Element>(lanes[lane]);
    std::memcpy(to[lane] + offset, &value, sizeof value);
  };
  if (mask == kAllLanes) {
    for (int lane = 0; lane < kWarpSize; ++lane) store(lane);
    return;
  }
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) store(std::countr_zero(rest));
}

// The lanes whose element in a register equals the one in memory.
template <typename Element, typename Lane>
std::uint32_t equal_elements(const std::byte* registers, std::int32_t from, const std::byte* const* host,
                             std::size_t offset, std::uint32_t mask) {
  const Lane* lanes = reinterpret_cast<const Lane*>(registers + from);
  std::uint32_t equal = mask;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    Element there;
    std::memcpy(&there, host[lane] + offset, sizeof there);
    if (there != static_cast<Element>(lanes[lane])) equal &= ~(1u << lane);
  }
  return equal;
}

// The lanes of registers of 32 and 64 bits have the same layout as the data of consecutive lanes in memory.
bool is_one_copy(const Instruction& instruction, const MemoryAccess& access) {
  return access.consecutive && instruction.elements == 1 && (instruction.bytes == 4 || instruction.bytes == 8);
}

// Calls f(Element(), Lane()), with the type of an element in memory and the type of a lane's place in a register, which
// differ for one byte.
template <typename F>
void with_types_of(const Instruction& instruction, F f) {
  switch (instruction.bytes) {
    case 1:
      return instruction.sign_extend ? f(std::int8_t(), std::int16_t()) : f(std::uint8_t(), std::uint16_t());
    case 2:
      return f(std::uint16_t(), std::uint16_t());
    case 4:
      return f(std::uint32_t(), std::uint32_t());
    default:
      return f(std::uint64_t(), std::uint64_t());
  }
}

void load_lanes(std::byte* registers, const Instruction& instruction, const std::byte* const* from,
                std::uint32_t mask) {
  with_types_of(instruction, [&](auto element, auto lane) {
    for (std::size_t i = 0; i < instruction.elements; ++i)
      load_element<decltype(element), decltype(lane)>(registers, instruction.r[i], from, i * sizeof element, mask);
  });
}

void store_lanes(const std::byte* registers, const Instruction& instruction, std::byte* const* to, std::uint32_t mask) {
  with_types_of(instruction, [&](auto element, auto lane) {
    for (std::size_t i = 0; i < instruction.elements; ++i)
      store_element<decltype(element), decltype(lane)>(registers, instruction.r[i + 1], to, i * sizeof element, mask);
  });
}

// The lanes that store the value that is already in memory.
std::uint32_t unchanged_lanes(const std::byte* registers, const Instruction& instruction, std::byte* const* host,
                              std::uint32_t mask) {
  std::uint32_t unchanged = mask;
  with_types_of(instruction, [&](auto element, auto lane) {
    for (std::size_t i = 0; i < instruction.elements && unchanged != 0; ++i) {
      unchanged = equal_elements<decltype(element), decltype(lane)>(registers, instruction.r[i + 1], host,
                                                                    i * sizeof element, unchanged);
    }
  });
  return unchanged;
}

SharedAccess read_of(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, const PlacedPattern& placed) {
  return {.warp = warp.index,
          .instruction = cta.index_of(instruction),
          .strength = instruction.strength,
          .mask = kAllLanes,
          .bytes = placed.pattern->bytes,
          .offsets = nullptr,
          .placed = placed};
}

bool load_shared(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const bool words = instruction.bytes == 4, halves = instruction.bytes == 2 && instruction.elements == 1;
  if ((!words && !halves) || is_strong(instruction.strength)) return false;
  const unsigned bytes = static_cast<unsigned>(instruction.bytes) * instruction.elements;
  const PlacedPattern placed =
      cta.memory().whole_warp_access(warp, instruction, instruction.r[instruction.writes], mask, bytes);
  if (placed.pattern == nullptr) return false;
  cta.memory().count_shared(instruction, *placed.pattern);
  if (cta.shadow() != nullptr) cta.shadow()->read(read_of(cta, warp, instruction, placed));
  lanes::gather(cta.memory().shared() + placed.base, placed.pattern->offsets.data(), instruction.bytes,
                instruction.elements, warp.registers, instruction.r.data());
  return true;
}

void load(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  if (instruction.space == Space::shared && load_shared(cta, warp, instruction, mask)) return;
  const std::int32_t reg = instruction.r[instruction.writes];
  cta.memory().for_each_space(warp, instruction, reg, mask, [&](const MemoryAccess& access, const LaneAddresses& at) {
    cta.memory().check_read(warp, instruction, at, access);
    cta.memory().acquire(warp, instruction, access, at);
    if (is_one_copy(instruction, access)) {
      std::memcpy(warp.registers + instruction.r[0], access.host[0], std::size_t{kWarpSize} * instruction.bytes);
    } else {
      load_lanes(warp.registers, instruction, access.host, access.good);
    }
  });
}

void store(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  bool changes = !cta.watching();
  const UndefinedLanes undefined = undefined_sources(cta, warp, instruction, 1, instruction.operands, mask);
  cta.memory().for_each_space(
      warp, instruction, instruction.r[0], mask, [&](const MemoryAccess& access, const LaneAddresses& at) {
        // Local memory is private to the thread, so only later reads of it matter.
        if (access.space != Space::local) {
          report_undefined(cta, warp, instruction, {undefined.lanes & access.lanes, undefined.origin}, "stored");
        }
        if (access.space == Space::param) {
          cta.find(FindingKind::out_of_bounds, &warp, &instruction, std::countr_zero(access.lanes), std::nullopt,
                   "a store to the kernel's parameters, which cannot be written");
          return;
        }
        if (access.space != Space::shared) {
          cta.memory().note_written(at, access, undefined.lanes);
        } else if (access.peer != nullptr) {
          cta.cluster().write_peer(warp, instruction, *access.peer, instruction.strength, access.good, access.bytes,
                                   access.offsets,
                                   unchanged_lanes(warp.registers, instruction, access.host, access.good));
        } else if (SharedShadow* const shadow = cta.shadow(); shadow != nullptr) {
          const auto unchanged = [&](std::uint32_t lanes) {
            return unchanged_lanes(warp.registers, instruction, access.host, lanes);
          };
          const SharedAccess shared{.warp = warp.index,
                                    .instruction = cta.index_of(instruction),
                                    .strength = cta.ordering()->strength_of(instruction.strength, warp.index),
                                    .mask = access.good,
                                    .bytes = access.bytes,
                                    .offsets = access.offsets,
                                    .placed = access.placed};
          if (!cta.mbarriers().empty()) shadow->look_for_lost(shared);
          const std::uint32_t overwritten = shadow->write(shared, unchanged(access.good));
          if (cta.async() != nullptr)
            cta.async()->proxy.note_write(warp.index, shared.instruction, access.good, access.bytes, access.offsets);
          if (overwritten != 0 && !is_strong(instruction.strength)) {
            store_lanes(warp.registers, instruction, access.host, access.good);
            shadow->report_overwritten(shared, overwritten & ~unchanged(overwritten));
          }
        }
        std::uint32_t overwritten = 0;
        const bool watched = access.space == Space::global && cta.memory().watches_global();
        if (watched && !cta.memory().write_untouched_global(warp, instruction, access, at)) {
          overwritten = cta.memory().write_global(
              warp, instruction, access, at, unchanged_lanes(warp.registers, instruction, access.host, access.good));
        }
        if (!changes) {
          changes = unchanged_lanes(warp.registers, instruction, access.host, access.good) != access.good;
        }
        const auto write_to = [&](std::byte* const* places) {
          const std::size_t bytes = instruction.bytes;
          if (is_one_copy(instruction, access) && places[kWarpSize - 1] == places[0] + (kWarpSize - 1) * bytes) {
            std::memcpy(places[0], warp.registers + instruction.r[1], kWarpSize * bytes);
          } else {
            store_lanes(warp.registers, instruction, places, access.good);
          }
        };
        write_to(access.host);
        if (watched) {
          std::byte* kept[kWarpSize];
          if (cta.memory().kept_at(warp, instruction, access, at, kept)) write_to(kept);
          if (overwritten != 0 && !is_strong(instruction.strength)) {
            cta.memory().report_overwritten_global(
                warp, instruction, access, at,
                overwritten & ~unchanged_lanes(warp.registers, instruction, access.host, overwritten));
          }
        }
        cta.memory().release(warp, instruction, access, at, false);
      });
  if (changes) cta.note_progress();
}

// Lane by lane, lowest first. Atomics of other CTAs cannot interfere, because kernels with atomics on global memory run
// serially. Calls f(lane, the bytes in memory, their owner), which returns whether it has changed them.
template <typename F>
void for_each_atomic(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask, F f) {
  bool changes = false;
  cta.memory().for_each_space(
      warp, instruction, instruction.r[instruction.writes], mask,
      [&](const MemoryAccess& access, const LaneAddresses& at) {
        if (access.space != Space::shared && access.space != Space::global) {
          cta.find(FindingKind::out_of_bounds, &warp, &instruction, std::countr_zero(access.lanes), std::nullopt,
                   "an atomic operation on memory that is neither global nor shared");
          return;
        }
        cta.memory().check_read(warp, instruction, at, access);
        if (access.peer != nullptr) {
          cta.cluster().write_peer(warp, instruction, *access.peer, kStrong, access.good, access.bytes, access.offsets,
                                   0);
        } else if (access.space == Space::shared && cta.shadow() != nullptr) {
          cta.shadow()->write(
              {warp.index, cta.index_of(instruction), kStrong, access.good, access.bytes, access.offsets}, 0);
          if (cta.async() != nullptr)
            cta.async()->proxy.note_write(warp.index, cta.index_of(instruction), access.good, access.bytes,
                                          access.offsets);
        }
        if (access.space == Space::global && cta.memory().watches_global())
          cta.memory().write_global(warp, instruction, access, at, 0);
        cta.memory().acquire(warp, instruction, access, at);
        cta.memory().release(warp, instruction, access, at, true);
        for (std::uint32_t rest = access.good; rest != 0; rest &= rest - 1) {
          const auto lane = static_cast<std::size_t>(std::countr_zero(rest));
          changes |= f(lane, access.host[lane], access.space);
        }
      });
  if (changes) cta.note_progress();
}

template <AtomicOperation kOperation>
void atomic(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const std::size_t bytes = instruction.bytes;
  for_each_atomic(cta, warp, instruction, mask, [&](std::size_t lane, std::byte* memory, Space space) {
    const std::size_t offset = lane * bytes;
    std::uint64_t old = 0, operand = 0, second = 0;
    std::memcpy(&old, memory, bytes);
    std::memcpy(&operand, warp.registers + instruction.r[2] + offset, bytes);
    std::memcpy(&second, warp.registers + instruction.r[3] + offset, bytes);
    const std::uint64_t result = apply_atomic(kOperation, instruction.type, space, old, operand, second);
    std::memcpy(memory, &result, bytes);
    std::memcpy(warp.registers + instruction.r[0] + offset, &old, bytes);
    return std::memcmp(&result, &old, bytes) != 0;
  });
}

// atom.cas.b128 and atom.exch.b128, in which each value is two registers: r contains the old one, the address, and one
// or two more.
template <bool kCompares>
void wide_atomic(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  using Wide = std::array<std::uint64_t, 2>;
  const auto part = [&](std::size_t operand, std::size_t lane) -> std::uint64_t& {
    return reinterpret_cast<std::uint64_t*>(warp.registers + instruction.r[operand])[lane];
  };
  for_each_atomic(cta, warp, instruction, mask, [&](std::size_t lane, std::byte* memory, Space) {
    Wide old;
    std::memcpy(&old, memory, sizeof old);
    const Wide first = {part(3, lane), part(4, lane)};
    const Wide result = !kCompares ? first : old == first ? Wide{part(5, lane), part(6, lane)} : old;
    std::memcpy(memory, &result, sizeof result);
    for (std::size_t i = 0; i < 2; ++i) part(i, lane) = old[i];
    return result != old;
  });
}

// atom.add.v2.f32 and similar: an addition to each of several adjacent numbers, which is atomic for each, but not for
// all of them together. r: the previous value, the address, the summand.
void vector_addition(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const std::size_t count = instruction.writes, bytes = instruction.bytes / count;
  for_each_atomic(cta, warp, instruction, mask, [&](std::size_t lane, std::byte* memory, Space space) {
    bool changes = false;
    std::uint64_t olds[4] = {};
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t operand = 0;
      std::memcpy(&olds[i], memory + i * bytes, bytes);
      std::memcpy(&operand, warp.registers + instruction.r[count + 1 + i] + lane * bytes, bytes);
      const std::uint64_t sum = apply_atomic(AtomicOperation::add, instruction.type, space, olds[i], operand, 0);
      std::memcpy(memory + i * bytes, &sum, bytes);
      changes |= std::memcmp(&sum, &olds[i], bytes) != 0;
    }
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(warp.registers + instruction.r[i] + lane * bytes, &olds[i], bytes);
    return changes;
  });
}

// For a strong access: its scope, whether it acquires or releases, and whose shared memory it may access.
void order_modifiers(const KernelDecoder& d, Instruction& out) {
  out.acquires = d.has("acquire") || d.has("acq_rel");
  out.releases = d.has("release") || d.has("acq_rel");
  out.block_only = d.has("cta");
  out.of_system = d.has("sys") || d.has("volatile");
  out.of_cluster = d.has("shared::cluster");
}

// The modifiers of ld and st before the type.
void memory_modifiers(const KernelDecoder& d, Space& space, int& elements, Strength& strength) {
  for (std::size_t i = 1; i + 1 < d.parts().size(); ++i) {
    const std::string_view part = d.parts()[i];
    if (const auto named = named_space(part)) {
      space = *named;
    } else if (part == "v2" || part == "v4") {
      elements = part[1] - '0';
    } else if (part == "volatile") {
      strength = kVolatile;
    } else if (part == "relaxed" || part == "acquire" || part == "release" || part == "mmio") {
      strength = kStrong;
    } else if (part != "weak" && part != "cta" && part != "gpu" && part != "sys" && part != "nc" && part != "ca" &&
               part != "cluster" && part != "cg" && part != "cs" && part != "lu" && part != "cv" && part != "wb" &&
               part != "wt" && !part.starts_with("L1::") && !part.starts_with("L2::")) {
      d.fail_unknown();
    }
  }
}

void decode_ld(KernelDecoder& d) {
  d.expect_operands(2, 3);
  Space space = Space::generic;
  int count = 1;
  Strength strength = kWeak;
  memory_modifiers(d, space, count, strength);
  const ptx::Type type = d.last_type();
  if (type.bits < 8 || type.bits * count > 128) d.fail_unknown();
  if (space == Space::param && d.operand(1).kind == Kind::variable) space = d.layout().space(d.operand(1).index);
  std::int64_t offset = 0;
  bool wide = true;
  const int address = d.address_operand(d.operand(1), space, offset, wide);
  const std::vector<Operand> results = d.elements(d.operand(0));
  if (static_cast<int>(results.size()) != count) d.fail("a vector of the wrong length");
  const bool wide_value = type.bits == 128;
  const int bytes = wide_value ? 8 : type.bits / 8;
  std::vector<int> writes = wide_value ? d.halves(results[0]) : std::vector<int>{};
  for (const Operand& result : results) {
    if (!wide_value) writes.push_back(d.write(result, slot_of(bytes), type.kind == 's'));
  }
  const InstructionClass instruction_class = space == Space::shared  ? InstructionClass::shared_load
                                             : space == Space::local ? InstructionClass::local_memory
                                             : space == Space::param || space == Space::constant
                                                 ? InstructionClass::parameter_load
                                                 : InstructionClass::global_load;
  Instruction& out = d.emit(load, instruction_class, writes, {address});
  out.role = MemoryRole::load;
  out.bytes = static_cast<std::uint8_t>(bytes);
  out.elements = static_cast<std::uint8_t>(writes.size());
  out.space = space;
  out.sign_extend = type.kind == 's';
  out.wide_address = wide;
  out.strength = strength;
  order_modifiers(d, out);
  out.offset = offset;
  if (strength != kWeak && (space == Space::global || space == Space::generic))
    d.kernel().serial = true;  // it may be another CTA's flag
}

void decode_st(KernelDecoder& d) {
  if (d.parts().size() > 1 && d.parts()[1] == "async") return decode_async_store(d);
  d.expect_operands(2, 3);
  Space space = Space::generic;
  int count = 1;
  Strength strength = kWeak;
  memory_modifiers(d, space, count, strength);
  const ptx::Type type = d.last_type();
  if (type.bits < 8 || type.bits * count > 128) d.fail_unknown();
  if (space == Space::param && d.operand(0).kind == Kind::variable) space = d.layout().space(d.operand(0).index);
  if (space == Space::constant || space == Space::param) d.fail("a store to memory that cannot be written");
  std::int64_t offset = 0;
  bool wide = true;
  std::vector<int> reads = {d.address_operand(d.operand(0), space, offset, wide)};
  const std::vector<Operand> values = d.elements(d.operand(1));
  if (static_cast<int>(values.size()) != count) d.fail("a vector of the wrong length");
  const bool wide_value = type.bits == 128;
  const int bytes = wide_value ? 8 : type.bits / 8;
  for (const Operand& value : values) {
    if (wide_value) {
      const std::vector<int> both = d.halves(value);
      reads.insert(reads.end(), both.begin(), both.end());
    } else {
      reads.push_back(d.read(value, slot_of(bytes)));
    }
  }
  const InstructionClass instruction_class = space == Space::shared  ? InstructionClass::shared_store
                                             : space == Space::local ? InstructionClass::local_memory
                                                                     : InstructionClass::global_store;
  Instruction& out = d.emit(store, instruction_class, {}, reads);
  out.role = MemoryRole::store;
  out.own_sources = 0xfffe;  // the values
  out.bytes = static_cast<std::uint8_t>(bytes);
  out.elements = static_cast<std::uint8_t>(reads.size() - 1);
  out.space = space;
  out.wide_address = wide;
  out.strength = strength;
  order_modifiers(d, out);
  out.offset = offset;
}

struct AtomicForm {
  Space space = Space::generic;
  AtomicOperation operation{};
  std::size_t elements = 1;
  ptx::Type type;
  bool has_result = true;  // atom, not red

  bool is_wide() const { return type.bits == 128; }
  bool is_vector() const { return elements > 1; }
  bool is_cas() const { return operation == AtomicOperation::cas; }
};

AtomicForm atomic_form(KernelDecoder& d) {
  const bool has_result = d.parts()[0] == "atom";
  Space space = Space::generic;
  std::optional<AtomicOperation> operation;
  std::size_t elements = 1;
  static const std::unordered_map<std::string_view, AtomicOperation> operations = {
      {"add", AtomicOperation::add},   {"min", AtomicOperation::min}, {"max", AtomicOperation::max},
      {"and", AtomicOperation::and_},  {"or", AtomicOperation::or_},  {"xor", AtomicOperation::xor_},
      {"exch", AtomicOperation::exch}, {"cas", AtomicOperation::cas}, {"inc", AtomicOperation::inc},
      {"dec", AtomicOperation::dec},
  };
  for (std::size_t i = 1; i + 1 < d.parts().size(); ++i) {
    const std::string_view part = d.parts()[i];
    if (const auto named = named_space(part)) {
      space = *named;
    } else if (const auto found = operations.find(part); found != operations.end()) {
      operation = found->second;
    } else if (part == "v2" || part == "v4") {
      elements = static_cast<std::size_t>(part[1] - '0');
    } else if (part != "relaxed" && part != "acquire" && part != "release" && part != "acq_rel" && part != "cta" &&
               part != "gpu" && part != "sys" && part != "cluster" && part != "noftz" && !part.starts_with("L2::")) {
      d.fail_unknown();
    }
  }
  const ptx::Type type = d.last_type();
  const bool is_wide = type.bits == 128;
  const bool supported = type.kind == 'f' || type.kind == 'h' ? operation == AtomicOperation::add
                         : is_wide
                             ? has_result && (operation == AtomicOperation::cas || operation == AtomicOperation::exch)
                             : type.bits >= 32 || operation == AtomicOperation::cas;
  const bool is_vector = elements > 1;
  const bool is_known_vector = (type.kind == 'f' || type.kind == 'h') && type.bits < 64 && space != Space::shared;
  if (!operation || !supported || type.bits < 16 || (is_vector && !is_known_vector) ||
      (space != Space::generic && space != Space::global && space != Space::shared)) {
    d.fail_unknown();
  }
  return {.space = space, .operation = *operation, .elements = elements, .type = type, .has_result = has_result};
}

// The values after the address, and the results.
void atomic_values(KernelDecoder& d, const AtomicForm& form, std::vector<int>& reads, std::vector<int>& writes) {
  const auto& [space, operation, elements, type, has_result] = form;
  const std::size_t first = has_result ? 1 : 0;
  if (form.is_wide()) {
    writes = d.halves(d.operand(0));
    for (std::size_t i = first + 1; i < d.num_operands(); ++i) {
      const std::vector<int> both = d.halves(d.operand(i));
      reads.insert(reads.end(), both.begin(), both.end());
    }
  } else if (form.is_vector()) {
    const Slot slot = slot_of(type.bits / 8);
    const std::vector<Operand> values = d.elements(d.operand(first + 1));
    const std::vector<Operand> results = has_result ? d.elements(d.operand(0)) : std::vector<Operand>(elements);
    if (values.size() != elements || results.size() != elements) d.fail("a vector of the wrong length");
    for (const Operand& value : values) reads.push_back(d.read(value, slot));
    for (const Operand& result : results) writes.push_back(has_result ? d.write(result, slot) : d.temporary(slot));
  } else {
    const Slot slot = slot_of(type.bits / 8);
    reads.push_back(d.read(d.operand(first + 1), slot));
    reads.push_back(form.is_cas() ? d.read(d.operand(first + 2), slot) : reads[1]);
    writes.push_back(has_result ? d.write(d.operand(0), slot) : d.temporary(slot));
  }
}

void decode_atom(KernelDecoder& d) {
  if (d.parts()[0] == "red" && d.parts().size() > 1 && d.parts()[1] == "async") return decode_async_store(d);
  const AtomicForm form = atomic_form(d);
  const std::size_t first = form.has_result ? 1 : 0;
  d.expect_operands(first + (form.is_cas() ? 3 : 2));
  std::int64_t offset = 0;
  bool wide = true;
  std::vector<int> reads = {d.address_operand(d.operand(first), form.space, offset, wide)}, writes;
  atomic_values(d, form, reads, writes);
  constexpr Execute kExecute[] = {atomic<AtomicOperation::add>,  atomic<AtomicOperation::min>,
                                  atomic<AtomicOperation::max>,  atomic<AtomicOperation::and_>,
                                  atomic<AtomicOperation::or_>,  atomic<AtomicOperation::xor_>,
                                  atomic<AtomicOperation::exch>, atomic<AtomicOperation::cas>,
                                  atomic<AtomicOperation::inc>,  atomic<AtomicOperation::dec>};
  const Execute execute = form.is_vector()  ? vector_addition
                          : !form.is_wide() ? kExecute[static_cast<std::size_t>(form.operation)]
                          : form.is_cas()   ? wide_atomic<true>
                                            : wide_atomic<false>;
  Instruction& out = d.emit(execute, InstructionClass::atomic, writes, reads);
  out.role = MemoryRole::store;
  out.bytes = static_cast<std::uint8_t>(form.type.bits / 8 * static_cast<int>(form.elements));
  out.space = form.space;
  out.wide_address = wide;
  out.strength = kStrong;
  order_modifiers(d, out);
  out.offset = offset;
  out.type = form.type;
  if (form.space != Space::shared) d.kernel().serial = true;
}

}  // namespace

std::optional<ptx::Space> named_space(std::string_view part) {
  if (part == "global") return ptx::Space::global;
  if (part == "const") return ptx::Space::constant;
  if (part == "shared" || part == "shared::cta" || part == "shared::cluster") return ptx::Space::shared;
  if (part == "local") return ptx::Space::local;
  if (part == "param" || part == "param::entry" || part == "param::func") return ptx::Space::param;
  return std::nullopt;
}

Instruction& emit_load(KernelDecoder& d, Space space, const std::vector<int>& to, int address, bool wide,
                       std::int64_t offset, int bytes) {
  Instruction& out = d.emit(load, InstructionClass::other, to, {address});
  out.role = MemoryRole::load;
  out.bytes = static_cast<std::uint8_t>(bytes);
  out.elements = static_cast<std::uint8_t>(to.size());
  out.space = space;
  out.wide_address = wide;
  out.offset = offset;
  return out;
}

Instruction& emit_store(KernelDecoder& d, Space space, const std::vector<int>& values, int address, bool wide,
                        std::int64_t offset, int bytes) {
  std::vector<int> reads = {address};
  reads.insert(reads.end(), values.begin(), values.end());
  Instruction& out = d.emit(store, InstructionClass::other, {}, reads);
  out.role = MemoryRole::store;
  out.own_sources = 0xfffe;  // the values
  out.bytes = static_cast<std::uint8_t>(bytes);
  out.elements = static_cast<std::uint8_t>(values.size());
  out.space = space;
  out.wide_address = wide;
  out.offset = offset;
  return out;
}

Instruction& emit_local_load(KernelDecoder& d, int to, std::uint64_t address, int bytes) {
  return emit_load(d, Space::local, {to}, d.constant(Slot::b64, 0), true, static_cast<std::int64_t>(address), bytes);
}

Instruction& emit_local_store(KernelDecoder& d, int from, std::uint64_t address, int bytes) {
  return emit_store(d, Space::local, {from}, d.constant(Slot::b64, 0), true, static_cast<std::int64_t>(address), bytes);
}

void add_memory_operations(OperationTable& table) {
  table.add("ld", decode_ld);
  table.add("ldu", decode_ld);
  table.add("st", decode_st);
  table.add("atom", decode_atom);
  table.add("red", decode_atom);
  table.add("ldmatrix", decode_ldmatrix);
}

}  // namespace flash_ladder::emulator
