// JSON members that are null or missing when a value is not known.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace flash_ladder {

/// null for an empty optional, string or container, and for 0.
template <typename T>
nlohmann::json known_or_null(const T& value) {
  bool known = false;
  if constexpr (requires { value.empty(); })
    known = !value.empty();
  else
    known = value != T{};
  return known ? nlohmann::json(value) : nlohmann::json(nullptr);
}
template <typename T>
nlohmann::json known_or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

/// Leaves `value` unchanged if the member is null or missing.
template <typename T>
void read_known(const nlohmann::json& object, const char* member, T& value) {
  const auto found = object.find(member);
  if (found != object.end() && !found->is_null()) found->get_to(value);
}
template <typename T>
void read_known(const nlohmann::json& object, const char* member, std::optional<T>& value) {
  const auto found = object.find(member);
  if (found != object.end() && !found->is_null()) value = found->get<T>();
}

}  // namespace flash_ladder
