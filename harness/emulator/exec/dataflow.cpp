#include "emulator/exec/dataflow.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <string_view>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

constexpr unsigned kWordBytes = 4;

// 2 m n k of an opcode that contains .m16n8k16 or another shape; 0 if it contains none.
std::uint64_t flops_of(std::string_view text) {
  for (std::size_t at = text.find(".m"); at != std::string_view::npos; at = text.find(".m", at + 1)) {
    std::uint64_t product = 2;
    const char *next = text.data() + at + 1, *const end = text.data() + text.size();
    bool is_shape = true;
    for (const char letter : {'m', 'n', 'k'}) {
      std::uint64_t size = 0;
      is_shape = is_shape && next != end && *next == letter;
      if (!is_shape) break;
      const auto [after, error] = std::from_chars(next + 1, end, size);
      is_shape = error == std::errc();
      next = after;
      product *= size;
    }
    if (is_shape) return product;
  }
  return 0;
}

}  // namespace

UsefulWork& UsefulWork::operator+=(const UsefulWork& other) {
  const std::uint64_t most_bytes = std::max(most_bytes_of_a_warp, other.most_bytes_of_a_warp);
  std::vector<std::uint64_t> added;
  for_each_number(other, [&](std::string_view, std::uint64_t number) { added.push_back(number); });
  std::size_t next = 0;
  for_each_number(*this, [&](std::string_view, std::uint64_t& number) { number += added[next++]; });
  for (std::size_t i = 0; i < mmas_loaded_ahead.size(); ++i) mmas_loaded_ahead[i] += other.mmas_loaded_ahead[i];
  most_bytes_of_a_warp = most_bytes;
  return *this;
}

Dataflow::Dataflow(const CompiledKernel& kernel, std::span<const MemoryRange> outputs, std::size_t num_warps,
                   std::size_t shared_bytes)
    : kernel_(kernel),
      outputs_(outputs.begin(), outputs.end()),
      places_(kernel.register_bytes / kWordBytes + 1),
      local_words_(kernel.local_bytes == 0 ? 0 : kernel.local_bytes / kWordBytes + 1),
      registers_(places_ * num_warps),
      shared_(shared_bytes / kWordBytes + 1),
      local_(local_words_ * num_warps * kWarpSize),
      copies_(num_warps),
      first_copies_(num_warps),
      first_in_flight_(num_warps),
      pending_(num_warps),
      changes_(num_warps),
      latest_(num_warps) {
  for (const Instruction& instruction : kernel.code) statics_.push_back(describe(kernel, instruction));
  start();
}

Dataflow::Static Dataflow::describe(const CompiledKernel& kernel, const Instruction& instruction) {
  const std::string_view text = kernel.sources[instruction.source].text;
  Static described;
  described.bytes = static_cast<std::uint64_t>(instruction.bytes) * std::max<unsigned>(instruction.elements, 1);
  switch (instruction.instruction_class) {
    case InstructionClass::mma:
      described.kind = Kind::mma;
      described.flops = flops_of(text);
      // D, A, B, C: D is as large as C, and A, with 16 rows, twice as large as B, with 8 columns.
      if (text.find("mma.sync.aligned.m16n8") != std::string_view::npos &&
          text.find("wmma") == std::string_view::npos) {
        const std::size_t inputs = instruction.operands - 2u * instruction.writes;
        described.registers_of_b = inputs / 3;
        described.first_of_b = instruction.writes + inputs - described.registers_of_b;
      }
      break;
    case InstructionClass::ldmatrix:
      described.kind = Kind::ldmatrix;
      break;
    case InstructionClass::cp_async:
      if (instruction.role == MemoryRole::copy) described.kind = Kind::copy;
      break;
    case InstructionClass::special:
      if (text.find("ex2.") == std::string_view::npos) break;
      described.kind = Kind::exponential;
      described.values = text.find("x2", text.find("ex2.") + 4) == std::string_view::npos ? 1 : 2;
      break;
    case InstructionClass::shuffle:
      described.kind = Kind::shuffle;
      break;
    case InstructionClass::atomic:
      described.kind = Kind::store;
      break;
    default:
      if (instruction.role == MemoryRole::load) described.kind = Kind::load;
      if (instruction.role == MemoryRole::store) described.kind = Kind::store;
      break;
  }
  return described;
}

void Dataflow::start() {
  nodes_.assign(1, {-1, 0, 0, 0, ptx::Space::generic});
  sources_.clear();
  std::ranges::fill(registers_, 0);
  std::ranges::fill(shared_, 0);
  std::ranges::fill(local_, 0);
  global_.clear();
  for (std::vector<Copy>& copies : copies_) copies.clear();
  std::ranges::fill(first_in_flight_, 0);
  std::ranges::fill(pending_, 0);
  std::ranges::fill(changes_, 0);
  std::ranges::fill(latest_, std::pair(~std::uint64_t{0}, std::uint32_t{0}));
  last_warp_ = -1;
  snapshots_.clear();
  loads_of_copies_.clear();
  mmas_.clear();
}

// Of the node that is being added. A source that is listed twice does no harm, so only the last few are compared.
void Dataflow::add_source(NodeId from) {
  if (from == 0) return;
  const std::size_t begin =
      std::max<std::size_t>(nodes_.back().sources_end, sources_.size() < 8 ? 0 : sources_.size() - 8);
  for (std::size_t i = begin; i < sources_.size(); ++i)
    if (sources_[i] == from) return;
  sources_.push_back(from);
}

Dataflow::NodeId& Dataflow::word(ptx::Space space, int warp, int lane, std::uint64_t index) {
  if (space == ptx::Space::shared) return shared_[index];
  if (space == ptx::Space::global) return global_[index];
  return local_[(static_cast<std::size_t>(warp) * kWarpSize + static_cast<std::size_t>(lane)) * local_words_ + index];
}

// Calls f(space, lane, number of the word) for each word of the lanes' accesses that lies in memory.
template <typename F>
void Dataflow::for_each_word(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::int32_t address,
                             std::uint32_t lanes, unsigned bytes, F f) {
  LaneAddresses addresses;
  cta.memory().addresses(warp, instruction, address, addresses);
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::uint64_t at = addresses.at[static_cast<std::size_t>(lane)];
    ptx::Space space = instruction.space;
    if (space == ptx::Space::generic) {
      space = ptx::Space::global;
      if (at - kSharedWindow < kWindowSize) {
        space = ptx::Space::shared;
        at -= kSharedWindow;
      } else if (at - kLocalWindow < kWindowSize) {
        space = ptx::Space::local;
        at -= kLocalWindow;
      }
    }
    if (space != ptx::Space::shared && space != ptx::Space::local && space != ptx::Space::global) continue;
    if (space != ptx::Space::global) at -= space == ptx::Space::shared ? kSharedBase : kLocalBase;
    const std::uint64_t words = space == ptx::Space::shared  ? shared_.size()
                                : space == ptx::Space::local ? local_words_
                                                             : ~std::uint64_t{0};
    const std::uint64_t first = at / kWordBytes, last = (at + bytes - 1) / kWordBytes;
    if (last < first || last >= words) continue;  // out of bounds, which is a finding
    for (std::uint64_t index = first; index <= last; ++index) f(space, lane, index);
  }
}

void Dataflow::execute(CtaExecutor& cta, const Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  settle(cta);
  const auto number = static_cast<std::int32_t>(&instruction - kernel_.code.data());
  const Static& described = statics_[static_cast<std::size_t>(number)];
  const auto id = static_cast<NodeId>(nodes_.size());
  const auto bytes = static_cast<unsigned>(described.bytes);
  ptx::Space space = instruction.space;
  bool reads_copies = false;

  const auto read_memory = [&](std::int32_t address, std::uint32_t lanes, unsigned size) {
    for_each_word(cta, warp, instruction, address, lanes, size, [&](ptx::Space in, int lane, std::uint64_t index) {
      space = in;
      if (in == ptx::Space::global) {
        if (global_.empty()) return;
        if (const auto found = global_.find(index); found != global_.end()) add_source(found->second);
        return;
      }
      const NodeId writer = word(in, warp.index, lane, index);
      add_source(writer);
      if (in != ptx::Space::shared || writer == 0 ||
          statics_[static_cast<std::size_t>(nodes_[writer].instruction)].kind != Kind::copy) {
        return;
      }
      reads_copies = true;
      if (nodes_[writer].warp == warp.index) note_read(warp.index, writer);
    });
  };
  const auto write_memory = [&](std::int32_t address, unsigned size) {
    // A store of less than a word leaves the rest as it was, so what was there before remains a source.
    if (size % kWordBytes != 0) read_memory(address, mask, size);
    for_each_word(cta, warp, instruction, address, mask, size, [&](ptx::Space in, int lane, std::uint64_t index) {
      space = in;
      word(in, warp.index, lane, index) = id;
    });
  };

  std::size_t first_source = instruction.writes;
  switch (described.kind) {
    case Kind::load:
      read_memory(instruction.r[instruction.writes], mask, bytes);
      first_source = instruction.operands;
      break;
    case Kind::ldmatrix:  // lanes 8 i … 8 i + 7 have the addresses of matrix i
      read_memory(instruction.r[instruction.writes],
                  instruction.writes == 4 ? kAllLanes : (1u << (8 * instruction.writes)) - 1, 16);
      first_source = instruction.operands;
      break;
    case Kind::store:
    case Kind::copy:
      first_source = instruction.writes + 1u;
      break;
    default:
      break;
  }
  if (described.kind == Kind::copy) {
    start_copy(warp, instruction, mask, bytes, id);
    first_source = instruction.operands;
  }
  for (std::size_t i = first_source; i < instruction.operands; ++i)
    add_source(register_of(warp.index, instruction.r[i]));
  if (described.registers_of_b != 0) note_loads_of_b(warp, instruction, described, id);
  if (described.kind == Kind::store) {
    if (instruction.instruction_class == InstructionClass::atomic)
      read_memory(instruction.r[instruction.writes], mask, bytes);
    write_memory(instruction.r[instruction.writes], bytes);
  }
  if (described.kind == Kind::copy) write_memory(instruction.r[0], bytes);
  for (std::size_t i = 0; i < instruction.writes; ++i) {
    NodeId& writer = register_of(warp.index, instruction.r[i]);
    if (mask != kAllLanes) add_source(writer);  // the other lanes keep their value
    writer = id;
  }
  nodes_.push_back(
      {number, mask, static_cast<std::uint32_t>(sources_.size()), static_cast<std::uint16_t>(warp.index), space});
  if (instruction.instruction_class == InstructionClass::barrier) last_warp_ = warp.index;
  if (reads_copies) loads_of_copies_.push_back({id, snapshot(cta, warp)});
}

// A cp.async reads its source when it starts, as far as the dataflow is concerned.
void Dataflow::start_copy(const Warp& warp, const Instruction& instruction, std::uint32_t mask, unsigned bytes,
                          NodeId id) {
  const auto of_warp = static_cast<std::size_t>(warp.index);
  if (copies_[of_warp].empty()) first_copies_[of_warp] = warp.copies_issued;
  copies_[of_warp].push_back({id, static_cast<std::uint32_t>(std::popcount(mask)) * bytes, true, true});
  ++pending_[of_warp];
  ++changes_[of_warp];
  if (global_.empty()) return;
  const auto* from = reinterpret_cast<const std::uint64_t*>(warp.registers + instruction.r[1]);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    for (unsigned i = 0; i < bytes; i += kWordBytes) {
      const auto found = global_.find((from[std::countr_zero(rest)] + i) / kWordBytes);
      if (found != global_.end()) add_source(found->second);
    }
  }
}

void Dataflow::note_loads_of_b(const Warp& warp, const Instruction& instruction, const Static& described, NodeId id) {
  std::vector<NodeId> loads;
  for (std::size_t i = 0; i < described.registers_of_b; ++i)
    loads.push_back(loaded_by(register_of(warp.index, instruction.r[described.first_of_b + i])));
  mmas_.emplace_back(id, std::move(loads));
}

// The ldmatrix that loaded a register's value, perhaps moved since; 0: none did.
Dataflow::NodeId Dataflow::loaded_by(NodeId node) const {
  while (node != 0) {
    const Node& at = nodes_[node];
    const Instruction& instruction = kernel_.code[static_cast<std::size_t>(at.instruction)];
    if (instruction.instruction_class == InstructionClass::ldmatrix) return node;
    const std::uint32_t begin = nodes_[node - 1].sources_end;
    if (instruction.instruction_class != InstructionClass::move || at.sources_end != begin + 1) return 0;
    node = sources_[begin];
  }
  return 0;
}

// Notes which copies have arrived during the previous instruction. A warp has waited for its own copies if they arrived
// while it executed. Those that arrived because another warp has waited at an mbarrier are still in flight for it.
void Dataflow::settle(CtaExecutor& cta) {
  if (last_warp_ < 0) return;
  for (const Warp& warp : cta.warps()) {
    const auto index = static_cast<std::size_t>(warp.index);
    if (pending_[index] == warp.copies.size()) continue;
    std::vector<Copy>& copies = copies_[index];
    auto still = warp.copies.begin();
    for (std::size_t i = first_in_flight_[index]; i < copies.size(); ++i) {
      if (still != warp.copies.end() && still->number == first_copies_[index] + i) {
        ++still;
      } else if (copies[i].pending) {
        copies[i].pending = false;
        if (warp.index == last_warp_) copies[i].in_flight = false;
      }
    }
    pending_[index] = warp.copies.size();
    ++changes_[index];
  }
  last_warp_ = -1;
}

// A warp that reads what one of its copies brought has waited for it, and for those before it.
void Dataflow::note_read(int warp, NodeId copy) {
  const auto index = static_cast<std::size_t>(warp);
  std::vector<Copy>& copies = copies_[index];
  for (std::size_t i = first_in_flight_[index]; i < copies.size() && copies[i].node <= copy; ++i) {
    changes_[index] += copies[i].in_flight;
    copies[i].in_flight = false;
  }
  while (first_in_flight_[index] < copies.size() && !copies[first_in_flight_[index]].in_flight &&
         !copies[first_in_flight_[index]].pending) {
    ++first_in_flight_[index];
  }
}

std::uint32_t Dataflow::snapshot(CtaExecutor& cta, const Warp& warp) {
  const auto index = static_cast<std::size_t>(warp.index);
  const bool of_one_warp = !copies_[index].empty();
  const auto warps = of_one_warp ? std::span(&warp, 1) : std::span<const Warp>(cta.warps());
  std::uint64_t changes = 0;
  for (const Warp& one : warps) changes += changes_[static_cast<std::size_t>(one.index)];
  if (latest_[index].first == changes) return latest_[index].second;
  InFlight in_flight{of_one_warp, {}};
  for (const Warp& one : warps) {
    const auto number = static_cast<std::size_t>(one.index);
    for (std::size_t i = first_in_flight_[number]; i < copies_[number].size(); ++i) {
      const Copy& copy = copies_[number][i];
      if (of_one_warp ? copy.in_flight : copy.pending) in_flight.copies.emplace_back(copy.node, copy.bytes);
    }
  }
  snapshots_.push_back(std::move(in_flight));
  latest_[index] = {changes, static_cast<std::uint32_t>(snapshots_.size() - 1)};
  return latest_[index].second;
}

// By node: whether its value reaches the output. Sources precede the nodes that use them, so one pass suffices.
std::vector<bool> Dataflow::useful_nodes() const {
  std::vector<bool> is_useful(nodes_.size());
  for (const auto& [index, node] : global_) {
    const Address address = index * kWordBytes;
    is_useful[node] = is_useful[node] || std::ranges::any_of(outputs_, [&](const MemoryRange& output) {
                        return address + kWordBytes > output.begin && address < output.begin + output.size;
                      });
  }
  for (std::size_t node = nodes_.size() - 1; node > 0; --node) {
    if (!is_useful[node]) continue;
    for (std::uint32_t i = nodes_[node - 1].sources_end; i < nodes_[node].sources_end; ++i)
      is_useful[sources_[i]] = true;
  }
  return is_useful;
}

void Dataflow::count_distances(const std::vector<bool>& is_useful, UsefulWork& work) const {
  std::vector<std::vector<NodeId>> of_warps(copies_.size());  // the useful mmas of each warp, in order
  for (const auto& [mma, loads] : mmas_) {
    if (!is_useful[mma]) continue;
    std::vector<NodeId>& before = of_warps[nodes_[mma].warp];
    const NodeId latest = std::ranges::find(loads, NodeId{0}) == loads.end() ? std::ranges::max(loads) : 0;
    if (latest != 0) {
      const auto between = static_cast<std::size_t>(before.end() - std::ranges::lower_bound(before, latest));
      for (std::size_t i = 0; i < work.mmas_loaded_ahead.size() && i <= between; ++i) ++work.mmas_loaded_ahead[i];
    }
    before.push_back(mma);
  }
}

void Dataflow::count_in_flight(const std::vector<bool>& is_useful, UsefulWork& work) const {
  const auto copying_warps = static_cast<std::uint64_t>(std::ranges::count_if(copies_, [&](const auto& copies) {
    return std::ranges::any_of(copies, [&](const Copy& copy) { return is_useful[copy.node]; });
  }));
  std::vector<std::uint64_t> bytes;  // by snapshot
  for (const InFlight& in_flight : snapshots_) {
    std::uint64_t sum = 0;
    for (const auto& [copy, size] : in_flight.copies) sum += is_useful[copy] ? size : 0;
    bytes.push_back(in_flight.of_one_warp ? sum * copying_warps : sum);
  }
  // What a warp that does not copy finds in flight depends on how far the copying warps have got.
  const auto counts = [&](const LoadOfCopy& load) { return is_useful[load.node]; };
  const bool copiers_read = std::ranges::any_of(
      loads_of_copies_, [&](const LoadOfCopy& load) { return counts(load) && snapshots_[load.snapshot].of_one_warp; });
  for (const LoadOfCopy& load : loads_of_copies_) {
    if (!counts(load) || (copiers_read && !snapshots_[load.snapshot].of_one_warp)) continue;
    ++work.loads_of_copies;
    work.bytes_in_flight += bytes[load.snapshot];
  }
}

UsefulWork Dataflow::finish() {
  UsefulWork work;
  const std::vector<bool> is_useful = useful_nodes();
  struct Loaded {
    std::uint64_t bytes = 0, exponentials = 0;
  };
  std::vector<Loaded> loaded(copies_.size());         // by warp: from global memory so far
  std::vector<std::uint64_t> copied(copies_.size());  // by warp: bytes
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    if (!is_useful[i]) continue;
    const Node& node = nodes_[i];
    const Static& described = statics_[static_cast<std::size_t>(node.instruction)];
    const Instruction& instruction = kernel_.code[static_cast<std::size_t>(node.instruction)];
    const auto lanes = static_cast<std::uint64_t>(std::popcount(node.mask));
    const std::uint64_t bytes = lanes * described.bytes;
    switch (described.kind) {
      case Kind::mma:
        ++work.mma_instructions;
        work.mma_flops += described.flops;
        break;
      case Kind::ldmatrix:
        work.ldmatrix_bytes += instruction.writes * std::uint64_t{128};
        break;
      case Kind::copy:
        work.copy_bytes += bytes;
        copied[node.warp] += bytes;
        break;
      case Kind::load:
        if (node.space == ptx::Space::shared) {
          work.shared_load_bytes += bytes;
          ++work.shared_load_instructions;
        } else if (node.space == ptx::Space::global) {
          work.global_load_bytes += bytes;
          loaded[node.warp].bytes += bytes;
        }
        break;
      case Kind::store:
        if (node.space == ptx::Space::shared) work.shared_store_bytes += bytes;
        break;
      case Kind::exponential:
        work.exponentials += lanes * described.values;
        work.bytes_before_exponentials += loaded[node.warp].bytes;
        ++loaded[node.warp].exponentials;
        break;
      case Kind::shuffle:
        ++work.shuffle_instructions;
        break;
      case Kind::other:
        break;
    }
  }
  for (const auto& [bytes, exponentials] : loaded) work.bytes_around_exponentials += bytes * exponentials;
  if (!copied.empty()) work.copy_bytes_of_one_warp = std::ranges::max(copied);
  for (std::size_t warp = 0; warp < copied.size(); ++warp)
    work.most_bytes_of_a_warp = std::max(work.most_bytes_of_a_warp, copied[warp] + loaded[warp].bytes);
  count_distances(is_useful, work);
  count_in_flight(is_useful, work);
  start();
  return work;
}

}  // namespace flash_ladder::emulator
