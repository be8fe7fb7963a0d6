#include "emulator/decode/control_flow.h"

#include <algorithm>
#include <cstddef>

#include "emulator/decode/virtual_register.h"

namespace flash_ladder::emulator {
namespace {

bool ends_block(const Instruction& instruction) {
  return instruction.action == Action::branch || instruction.action == Action::branch_table ||
         instruction.action == Action::exit;
}

// A failed assertion, a trap and a call of a null function end the threads; the compiler may treat them like any other
// call, after which the lanes reconverge with those on another path.
bool falls_through(const Instruction& instruction) {
  return !ends_block(instruction) || instruction.guard >= 0 ||
         (instruction.action == Action::exit && instruction.execute != nullptr);
}

// Post-dominators, by Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph. Node n
// is block n, and the node after the last represents the end of the kernel.
std::vector<int> immediate_post_dominators(const std::vector<Block>& blocks) {
  const int end = static_cast<int>(blocks.size());
  std::vector<std::vector<int>> predecessors(blocks.size() + 1);  // in the graph, so successors in the reversed one
  const auto successors = [&](int block) { return blocks[static_cast<std::size_t>(block)].successors; };
  for (int block = 0; block < end; ++block) {
    if (successors(block).empty()) predecessors[static_cast<std::size_t>(end)].push_back(block);
    for (const int next : successors(block)) predecessors[static_cast<std::size_t>(next)].push_back(block);
  }
  // Reverse postorder of the reversed graph, from the end.
  std::vector<int> order, number(blocks.size() + 1, -1);
  std::vector<std::pair<int, std::size_t>> stack = {{end, 0}};
  std::vector<bool> seen(blocks.size() + 1, false);
  seen[static_cast<std::size_t>(end)] = true;
  while (!stack.empty()) {
    auto& [node, next] = stack.back();
    const std::vector<int>& out = predecessors[static_cast<std::size_t>(node)];
    if (next < out.size()) {
      const int child = out[next++];
      if (!seen[static_cast<std::size_t>(child)]) {
        seen[static_cast<std::size_t>(child)] = true;
        stack.emplace_back(child, 0);
      }
    } else {
      number[static_cast<std::size_t>(node)] = static_cast<int>(order.size());
      order.push_back(node);
      stack.pop_back();
    }
  }
  std::vector<int> dominator(blocks.size() + 1, -1);
  dominator[static_cast<std::size_t>(end)] = end;
  const auto intersect = [&](int a, int b) {
    while (a != b) {
      while (number[static_cast<std::size_t>(a)] < number[static_cast<std::size_t>(b)])
        a = dominator[static_cast<std::size_t>(a)];
      while (number[static_cast<std::size_t>(b)] < number[static_cast<std::size_t>(a)])
        b = dominator[static_cast<std::size_t>(b)];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (auto node = order.rbegin() + 1; node != order.rend(); ++node) {
      int found = -1;
      const auto consider = [&](int next) {
        if (dominator[static_cast<std::size_t>(next)] < 0) return;
        found = found < 0 ? next : intersect(found, next);
      };
      if (successors(*node).empty()) consider(end);
      for (const int next : successors(*node)) consider(next);
      if (found != dominator[static_cast<std::size_t>(*node)]) {
        dominator[static_cast<std::size_t>(*node)] = found;
        changed = true;
      }
    }
  }
  return dominator;  // -1 for blocks from which the end cannot be reached
}

}  // namespace

std::vector<Block> basic_blocks(const CompiledKernel& kernel) {
  const auto size = static_cast<std::int32_t>(kernel.code.size());
  std::vector<bool> leads(kernel.code.size() + 1, false);
  leads[0] = true;
  for (std::int32_t i = 0; i < size; ++i) {
    const Instruction& instruction = kernel.code[static_cast<std::size_t>(i)];
    if (ends_block(instruction)) leads[static_cast<std::size_t>(i) + 1] = true;
    if (instruction.action == Action::branch) leads[static_cast<std::size_t>(instruction.target)] = true;
    if (instruction.action == Action::branch_table) {
      for (const std::int32_t target : kernel.branch_tables[instruction.count])
        leads[static_cast<std::size_t>(target)] = true;
    }
  }
  std::vector<Block> blocks;
  std::vector<int> block_of(kernel.code.size());
  for (std::int32_t i = 0; i < size; ++i) {
    if (leads[static_cast<std::size_t>(i)]) blocks.push_back({.begin = i, .end = i, .successors = {}});
    blocks.back().end = i + 1;
    block_of[static_cast<std::size_t>(i)] = static_cast<int>(blocks.size()) - 1;
  }
  for (Block& block : blocks) {
    const Instruction& last = kernel.code[static_cast<std::size_t>(block.end) - 1];
    if (falls_through(last) && block.end < size)
      block.successors.push_back(block_of[static_cast<std::size_t>(block.end)]);
    if (last.action == Action::branch) block.successors.push_back(block_of[static_cast<std::size_t>(last.target)]);
    if (last.action == Action::branch_table) {
      for (const std::int32_t target : kernel.branch_tables[last.count]) {
        block.successors.push_back(block_of[static_cast<std::size_t>(target)]);
      }
    }
  }
  return blocks;
}

void find_reconvergence_points(CompiledKernel& kernel) {
  const std::vector<Block> blocks = basic_blocks(kernel);
  const std::vector<int> dominator = immediate_post_dominators(blocks);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Instruction& last = kernel.code[static_cast<std::size_t>(blocks[i].end) - 1];
    if (last.action != Action::branch && last.action != Action::branch_table) continue;
    const int meet = dominator[i];
    const bool at_end = meet < 0 || meet == static_cast<int>(blocks.size());
    last.reconverge = at_end ? -1 : blocks[static_cast<std::size_t>(meet)].begin;
  }
}

}  // namespace flash_ladder::emulator
