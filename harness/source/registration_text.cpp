#include "source/registration_text.h"

#include <algorithm>
#include <string_view>

#include "source/kernel_source.h"
#include "source/tokens.h"

namespace flash_ladder {

RegistrationText read_registration(const std::filesystem::path& source) {
  const std::string file = read_source(source);
  // The statement is the file's last: all that is before it need not be read closely.
  const std::vector<Token> all =
      tokens(std::string_view(file).substr(std::min(file.rfind("Registration "), file.size())));
  const auto at = [&](std::size_t i) -> std::string_view {
    return i < all.size() ? std::string_view(all[i].text) : std::string_view();
  };
  const auto without_quotes = [](std::string_view literal) {
    return std::string(literal.substr(1, std::max<std::size_t>(literal.size(), 2) - 2));
  };
  std::size_t i = 0;
  while (i < all.size() && !(at(i) == "Registration" && at(i + 2) == "(")) ++i;
  RegistrationText text;
  bool in_solves = false;
  for (; i < all.size() && at(i) != ";"; ++i) {
    if (at(i) == "." && at(i + 2) == "=") {
      const std::string_view member = at(i + 1);
      if (member == "extends") text.extends = without_quotes(at(i + 3));
      if (member == "architecture") text.architecture = at(i + 5);  // Architecture::sm_90a
      if (in_solves && at(i + 3) == "true") text.solves.emplace_back(member);
      in_solves = in_solves || member == "solves";
    }
    if (at(i) == "}") in_solves = false;
    if (at(i) != "configuration" || at(i + 1) != "<") continue;
    while (i < all.size() && !at(i).starts_with('"') && at(i) != ";") ++i;
    const std::string name = without_quotes(at(i));
    if (std::ranges::find(text.configurations, name) == text.configurations.end()) text.configurations.push_back(name);
  }
  return text;
}

}  // namespace flash_ladder
