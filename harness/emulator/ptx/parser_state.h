// The parser of PTX text. parser.cpp has the text's grammar outside functions; function_parser.cpp has that of functions.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/ptx/lexer.h"
#include "emulator/ptx/source_lines.h"
#include "emulator/ptx/syntax.h"

namespace flash_ladder::emulator::ptx {

class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text) {}

  Text parse();

 private:
  // The declarations within a pair of braces inside a function.
  struct Scope {
    std::unordered_map<std::string_view, std::pair<int, int>> ranges;  // "%r" → first index and count, of %r<count>
    std::unordered_map<std::string_view, int> registers;
    std::unordered_map<std::string_view, int> variables;
    std::unordered_map<std::string_view, int> labels;  // → instruction index
    std::unordered_map<std::string_view, int> tables;  // → branch table
    struct Use {  // use of a name that is not a register or a variable: a label further on, or a function
      std::string_view name;
      int instruction;  // -1: `operand` is an index in branch table `table`
      int operand;
      int table;
      int line;
    };
    std::vector<Use> uses;
  };

  Token expect_word();
  void expect(char symbol);
  std::int64_t expect_integer();
  bool accept(char symbol);
  bool accept(std::string_view word);

  void parse_file();
  void name_files();
  void skip_to_semicolon();
  std::array<std::uint32_t, 3> parse_dimensions();
  int parse_variable(Space space, bool external, bool parameter);
  void parse_initial(Variable& variable, int element_bytes);
  void parse_initial_value(Variable& variable, int element_bytes, std::size_t& offset);
  void parse_function(bool entry);
  std::vector<int> parse_parameters();
  void parse_body();
  void parse_statement();
  void parse_registers(std::string_view type_name);
  void parse_location(SourceLines& lines);
  void parse_branch_targets(std::string_view label);
  void parse_instruction();
  Operand parse_operand(int operand_number);
  Operand parse_name(int operand_number);
  void parse_offset(Operand& operand);
  int find_register(std::string_view name) const;
  int find_variable(std::string_view name) const;
  bool is_function(std::string_view name) const;
  void close_scope();

  Lexer lexer_;
  Text text_;
  std::unordered_map<std::string_view, int> module_variables_;
  Function* function_ = nullptr;
  int function_index_ = -1;
  SourceLines* lines_ = nullptr;
  int position_ = 0;
  std::vector<Scope> scopes_;
  std::vector<std::vector<std::vector<SourceLines::NumberedLine>>> positions_;  // of each function
};

}  // namespace flash_ladder::emulator::ptx
