// Versions that the linker or a reader could confuse, and tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/terminal/table.h"
#include "host/versions.h"
#include "modules/modules.h"

namespace flash_ladder {
namespace v06 {
struct Traits {};
}  // namespace v06
namespace causal {
struct Traits {};
}  // namespace causal

namespace {

using testing::HasSubstr;

Version version(const std::string& label, const std::string& traits) {
  Version version = version_of_file("kernels/" + label + ".cu");
  version.configurations.resize(1);
  version.configurations[0].name = "64x64";
  version.configurations[0].traits = traits;
  return version;
}

const std::string kOf06 = typeid(v06::Traits).name();

TEST(ItsOwnCode, IsInTheVersionsNamespace) {
  EXPECT_EQ(why_not_its_own_code(version("06_swizzle", kOf06)), std::nullopt);
  EXPECT_EQ(why_not_its_own_code(version("extensions/causal", typeid(causal::Traits).name())), std::nullopt);
  for (const std::string label : {"17_mine", "extensions/causal"}) {
    const auto why = why_not_its_own_code(version(label, kOf06));
    ASSERT_TRUE(why);
    EXPECT_THAT(*why, HasSubstr("kernels/" + label + ".cu"));
    EXPECT_THAT(*why, HasSubstr("flash_ladder::" + code_namespace(version(label, kOf06)) + ";"));
  }
}

TEST(WhyExtendsNone, IsTheFilesMistake) {
  announce(version("06_swizzle", kOf06));
  Version extension = version("extensions/mine", "");
  extension.extends = "06";
  EXPECT_EQ(why_extends_none(extension), std::nullopt);
  extension.extends = "99";
  EXPECT_EQ(why_extends_none(extension),
            "kernels/extensions/mine.cu extends '99', which is no version; write one of 06, and build again");
}

TEST(Table, LeavesOutTheLeastImportantFirst) {
  const std::vector<Column> columns = {
      {"name", 6, Column::Side::left, 0}, {"a", 5, Column::Side::right, 2}, {"b", 5, Column::Side::right, 1}};
  EXPECT_EQ(Table(columns, 18).row({"x", "1", "2"}), "x          1     2\n");
  EXPECT_EQ(Table(columns, 17).row({"x", "1", "2"}), "x          1\n");
  EXPECT_EQ(Table(columns, 17).left_out(), "b");
  EXPECT_EQ(Table(columns, 3).row({"x", "1", "2"}), "x\n") << "the first column stays";
  EXPECT_EQ(Table(columns, 18).header(), "name       a     b\n");
}

TEST(Wrapped, BreaksAtBlanks) {
  EXPECT_EQ(wrapped("one two three\nfour", 7, 2), "one two\n  three\nfour");
  EXPECT_EQ(wrapped("  --flag  what it means", 18, 10), "  --flag  what it\n          means");
  EXPECT_EQ(wrapped("unbreakable", 4, 2), "unbreakable");
  EXPECT_EQ(wrapped("", 4, 2), "");
  EXPECT_EQ(wrapped("a\n\nb\n", 4, 2), "a\n\nb\n");
}

}  // namespace
}  // namespace flash_ladder
