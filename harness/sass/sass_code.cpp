#include "sass/sass_code.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <utility>

#include "sass/opcode_class.h"
#include "trimmed.h"

namespace flash_ladder {
namespace {

// One line of nvdisasm's output, such as
//         /*5ab0*/               @P0 BRA `(.L_x_1) ;
struct Instruction {
  std::string opcode;                // "BRA", without modifiers
  bool conditional = false;          // "@P0 BRA `(.L_x_1)" and "BRA !P2, `(.L_x_1)"
  std::vector<std::string> targets;  // the labels that it refers to: ".L_x_1", "$__internal_…"
};

// Whether a block ends here, and what may come after it.
struct Flow {
  bool ends_block;
  bool to_target;
  bool to_next;
};

Flow flow_of(const Instruction& instruction) {
  const std::string& op = instruction.opcode;
  const bool conditional = instruction.conditional;
  const bool local = !instruction.targets.empty() && instruction.targets.front().starts_with(".L");
  if (op == "BRA" || op == "BRX" || op == "JMP" || op == "JMX") return {true, true, conditional};
  // ptxas leaves some loops through a CALL to a label inside the function: that is a jump, because nothing returns from
  // there.
  if (op == "CALL") return {true, true, conditional || !local};
  if (op == "EXIT" || op == "RET" || op == "KILL") return {true, false, conditional};
  if (op == "WARPSYNC" && local) return {true, true, true};
  // BSSY also names a label, but only as the place where lanes reconverge. Its BSYNC is right before that label, so
  // control continues there.
  return {false, false, true};
}

// Removes the first word of `text` and returns it.
std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(' '));
  text = trimmed(text.substr(word.size()));
  return word;
}

std::optional<Instruction> parse_instruction(std::string_view line) {
  line = trimmed(line);
  const std::size_t address_end = line.find("*/");
  if (!line.starts_with("/*") || address_end == std::string_view::npos) return std::nullopt;
  line = trimmed(line.substr(address_end + 2));
  const std::size_t end = line.find(';');
  if (end == std::string_view::npos) return std::nullopt;
  line = trimmed(line.substr(0, end));

  Instruction instruction;
  bool never = false;
  if (line.starts_with('@')) {
    const std::string_view guard = take_word(line);
    never = guard == "@!PT" || guard == "@!UPT";
    instruction.conditional = true;
  }
  const std::string_view opcode = take_word(line);
  instruction.opcode = never ? "NOP" : std::string(opcode.substr(0, opcode.find('.')));
  if (const std::size_t label = line.find("`("); label != std::string_view::npos) {
    instruction.targets.emplace_back(line.substr(label + 2, line.find(')', label) - label - 2));
    instruction.conditional |= label > 0;
  }
  // A jump table: BRX R2 -0x30 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)
  constexpr std::string_view kTable = "BRANCH_TARGETS ";
  if (const std::size_t table = line.find(kTable); table != std::string_view::npos) {
    std::istringstream labels{
        std::string(line.substr(table + kTable.size(), line.find('"', table) - table - kTable.size()))};
    for (std::string label; std::getline(labels, label, ',');) instruction.targets.push_back(label);
  }
  return instruction;
}

// The instructions and labels of one section of code.
struct Section {
  std::string name;
  std::vector<Instruction> instructions;
  std::map<std::string, std::size_t> labels;  // label → index of the instruction after it

  // The indices in this section that an instruction refers to.
  std::vector<std::size_t> targets_of(const Instruction& instruction) const {
    std::vector<std::size_t> positions;
    for (const std::string& target : instruction.targets)
      if (const auto label = labels.find(target); label != labels.end() && label->second < instructions.size())
        positions.push_back(label->second);
    return positions;
  }
};

void remove_padding(Section& section) {
  auto& all = section.instructions;
  while (!all.empty()) {
    const Instruction& last = all.back();
    const bool trap = last.opcode == "BRA" && section.targets_of(last) == std::vector{all.size() - 1};
    if (last.opcode != "NOP" && !trap) return;
    all.pop_back();
  }
}

SassFunction to_blocks(const Section& section) {
  const auto& all = section.instructions;
  std::vector<bool> starts_block(all.size() + 1, false);
  starts_block[0] = true;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (flow_of(all[i]).ends_block) starts_block[i + 1] = true;
  for (const auto& [label, position] : section.labels)
    if (position < all.size()) starts_block[position] = true;

  std::vector<int> block_of(all.size());
  int num_blocks = 0;
  for (std::size_t i = 0; i < all.size(); ++i) block_of[i] = starts_block[i] ? num_blocks++ : num_blocks - 1;

  SassFunction function{.name = section.name, .blocks = std::vector<BasicBlock>(num_blocks)};
  for (std::size_t i = 0; i < all.size(); ++i) {
    BasicBlock& block = function.blocks[block_of[i]];
    block.opcodes.push_back(all[i].opcode);
    if (!starts_block[i + 1] && i + 1 < all.size()) continue;
    const Flow flow = flow_of(all[i]);
    std::set<int> successors;
    if (flow.to_target)
      for (const std::size_t target : section.targets_of(all[i])) successors.insert(block_of[target]);
    if (flow.to_next && i + 1 < all.size()) successors.insert(block_of[i + 1]);
    block.successors.assign(successors.begin(), successors.end());
  }
  return function;
}

// Immediate dominators of the blocks, by Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm".
class Dominators {
 public:
  explicit Dominators(const SassFunction& function)
      : predecessors_(function.blocks.size()), order_(function.blocks.size(), kUnreached), idom_(order_) {
    if (function.blocks.empty()) return;
    std::vector<int> postorder;
    visit(function, 0, postorder);
    for (std::size_t i = 0; i < postorder.size(); ++i) order_[postorder[i]] = static_cast<int>(i);
    for (const int block : postorder)
      for (const int next : function.blocks[block].successors) predecessors_[next].push_back(block);

    idom_[0] = 0;
    for (bool changed = true; changed;) {
      changed = false;
      for (auto block = postorder.rbegin() + 1; block != postorder.rend(); ++block) {
        int dominator = kUnreached;
        for (const int predecessor : predecessors_[*block])
          if (idom_[predecessor] != kUnreached)
            dominator = dominator == kUnreached ? predecessor : common(dominator, predecessor);
        changed |= idom_[*block] != dominator;
        idom_[*block] = dominator;
      }
    }
  }

  bool reached(int block) const { return order_[block] != kUnreached; }
  const std::vector<int>& predecessors(int block) const { return predecessors_[block]; }  // those that are reachable
  // Whether every path from the entry to `block` passes through `dominator`. Both must be reachable.
  bool dominates(int dominator, int block) const {
    while (block != dominator && block != 0) block = idom_[block];
    return block == dominator;
  }

 private:
  static constexpr int kUnreached = -1;

  void visit(const SassFunction& function, int block, std::vector<int>& postorder) {
    order_[block] = 0;
    for (const int next : function.blocks[block].successors)
      if (order_[next] == kUnreached) visit(function, next, postorder);
    postorder.push_back(block);
  }

  int common(int a, int b) const {
    while (a != b) (order_[a] < order_[b] ? a : b) = idom_[order_[a] < order_[b] ? a : b];
    return a;
  }

  std::vector<std::vector<int>> predecessors_;
  std::vector<int> order_;  // position in postorder
  std::vector<int> idom_;
};

std::vector<Loop> natural_loops(const SassFunction& function, const Dominators& dominators) {
  std::map<int, Loop> loops;  // by header
  const int num_blocks = static_cast<int>(function.blocks.size());
  for (int block = 0; block < num_blocks; ++block) {
    if (!dominators.reached(block)) continue;
    for (const int next : function.blocks[block].successors)
      if (dominators.dominates(next, block)) {
        loops[next].header = next;
        loops[next].latches.push_back(block);
      }
  }
  std::vector<Loop> result;
  for (auto& [header, loop] : loops) {
    std::set<int> members = {header};
    for (std::vector<int> pending = loop.latches; !pending.empty();) {
      const int block = pending.back();
      pending.pop_back();
      if (!members.insert(block).second) continue;
      pending.insert(pending.end(), dominators.predecessors(block).begin(), dominators.predecessors(block).end());
    }
    loop.blocks.assign(members.begin(), members.end());
    result.push_back(std::move(loop));
  }
  // Two natural loops with different headers are nested or disjoint, so of two that overlap the larger is the outer one.
  std::stable_sort(result.begin(), result.end(),
                   [](const Loop& a, const Loop& b) { return a.blocks.size() > b.blocks.size(); });
  return result;
}

void add_opcodes(const BasicBlock& block, OpcodeCounts& counts) {
  for (const std::string& opcode : block.opcodes) ++counts[opcode];
}

}  // namespace

std::vector<SassFunction> parse_sass(std::string_view text) {
  constexpr std::string_view kSectionPrefix = ".text.";
  std::vector<Section> sections;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);

    const bool is_label = line.ends_with(':') && !std::isspace(static_cast<unsigned char>(line.front()));
    if (is_label) {
      const std::string_view label = line.substr(0, line.size() - 1);
      if (label.starts_with(kSectionPrefix)) {
        // nvdisasm prints a function's own label right before the label of its section.
        sections.push_back(
            {.name = std::string(label.substr(kSectionPrefix.size())), .instructions = {}, .labels = {}});
        sections.back().labels[sections.back().name] = 0;
      } else if (!sections.empty()) {
        sections.back().labels[std::string(label)] = sections.back().instructions.size();
      }
    } else if (const auto instruction = parse_instruction(line); instruction && !sections.empty()) {
      sections.back().instructions.push_back(*instruction);
    }
  }

  std::vector<SassFunction> functions;
  for (Section& section : sections) {
    remove_padding(section);
    functions.push_back(to_blocks(section));
  }
  return functions;
}

OpcodeCounts count_opcodes(const SassFunction& function) {
  OpcodeCounts counts;
  for (const BasicBlock& block : function.blocks) add_opcodes(block, counts);
  return counts;
}

std::vector<Loop> natural_loops(const SassFunction& function) { return natural_loops(function, Dominators(function)); }

std::optional<LoopCounts> hot_loop(const SassFunction& function, const std::string& opcode) {
  const Dominators dominators(function);
  const std::vector<Loop> loops = natural_loops(function, dominators);

  // Each block's innermost loop: the last of the loops around it.
  std::vector<int> innermost(function.blocks.size(), -1);
  for (std::size_t i = 0; i < loops.size(); ++i)
    for (const int block : loops[i].blocks) innermost[block] = static_cast<int>(i);

  std::vector<long> instructions(loops.size(), 0);
  for (std::size_t block = 0; block < function.blocks.size(); ++block)
    if (innermost[block] >= 0) {
      const auto& opcodes = function.blocks[block].opcodes;
      instructions[innermost[block]] += std::count(opcodes.begin(), opcodes.end(), opcode);
    }
  // Among equals, take the last: inner loops come after the loops around them.
  const auto most = std::max_element(instructions.rbegin(), instructions.rend());
  if (most == instructions.rend() || *most == 0) return std::nullopt;

  LoopCounts counts;
  const Loop& loop = loops[instructions.rend() - most - 1];
  for (const int block : loop.blocks) {
    const bool always = std::all_of(loop.latches.begin(), loop.latches.end(),
                                    [&](int latch) { return dominators.dominates(block, latch); });
    add_opcodes(function.blocks[block], always ? counts.every_iteration : counts.cold);
  }
  counts.blocks = loop.blocks;
  return counts;
}

std::optional<HotLoop> hot_loop(const std::vector<SassFunction>& functions) {
  OpcodeCounts all;
  for (const SassFunction& function : functions)
    for (const BasicBlock& block : function.blocks) add_opcodes(block, all);
  const std::string opcode = work_opcode(all);
  const auto work = [&](const OpcodeCounts& counts) { return counts.contains(opcode) ? counts.at(opcode) : 0; };
  std::optional<HotLoop> most;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    auto loop = hot_loop(functions[i], opcode);
    if (loop &&
        (!most || work(loop->every_iteration) + work(loop->cold) > work(most->every_iteration) + work(most->cold)))
      most = HotLoop{std::move(*loop), i};
  }
  return most;
}

}  // namespace flash_ladder
