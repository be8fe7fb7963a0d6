// Versions that the linker or a reader could confuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/registration_check.h"
#include "app/table.h"
#include "host/versions.h"

namespace flash_ladder {
namespace v06 {
struct Traits {};
}  // namespace v06
namespace v17 {
struct Traits {};
}  // namespace v17

namespace {

using testing::HasSubstr;

Version version(const std::string& label, const std::string& traits) {
  Version version = version_of_file("kernels/" + label + ".cu");
  version.configurations.resize(1);
  version.configurations[0].name = "64x64";
  version.configurations[0].traits = traits;
  return version;
}

const std::string kOf06 = typeid(v06::Traits).name(), kOf17 = typeid(v17::Traits).name();

TEST(WhyMixedUp, NotWhereEachHasItsOwn) {
  EXPECT_EQ(why_mixed_up({version("06_swizzle", kOf06), version("17_mine", kOf17)}), std::nullopt);
  EXPECT_EQ(why_mixed_up(versions()), std::nullopt);
}

TEST(WhyMixedUp, TheOldNamespaceInACopy) {
  const auto why = why_mixed_up({version("06_swizzle", kOf06), version("17_mine", kOf06)});
  ASSERT_TRUE(why);
  EXPECT_THAT(*why, HasSubstr("06_swizzle and 17_mine both have flash_ladder::v06::Traits"));
  EXPECT_THAT(*why, HasSubstr("17_mine's code into namespace flash_ladder::v17"));
}

TEST(WhyMixedUp, TraitsOutsideOfTheVersionsNamespace) {
  const auto why = why_mixed_up({version("17_mine", kOf06)});
  ASSERT_TRUE(why);
  EXPECT_THAT(*why, HasSubstr("kernels/17_mine.cu: the traits flash_ladder::v06::Traits of configuration 64x64"));
}

TEST(WhyMixedUp, AnExtensionHasItsNamesNamespace) {
  EXPECT_EQ(why_mixed_up({version("extensions/causal", "flash_ladder::causal::Traits")}), std::nullopt);
  const auto why = why_mixed_up({version("extensions/causal", kOf06)});
  ASSERT_TRUE(why);
  EXPECT_THAT(*why, HasSubstr("are not in namespace flash_ladder::causal;"));
}

TEST(WhyExtendsNone, IsTheFilesMistake) {
  const Version base = version("06_swizzle", kOf06);
  Version extension = version("extensions/mine", "flash_ladder::mine::Traits");
  extension.extends = "06";
  EXPECT_EQ(why_extends_none({base, extension}), std::nullopt);
  EXPECT_EQ(why_extends_none(versions()), std::nullopt);
  extension.extends = "99";
  EXPECT_EQ(why_extends_none({base, extension}),
            "kernels/extensions/mine.cu extends '99', which is not a version; write one of 06, mine, and build again");
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
