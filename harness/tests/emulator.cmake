# Tests of the virtual GPU's library. emulator-hardware runs the conformance suite on a GPU instead; it is built, not run.
add_library(flash_ladder_emulator_cases OBJECT emulator_cases.cpp)
target_link_libraries(flash_ladder_emulator_cases PRIVATE flash_ladder_options PUBLIC flash_ladder_emulator fmt::fmt)

flash_ladder_test(
  emulator_test SOURCES emulator_conformance_test.cpp emulator_findings_test.cpp emulator_fuzz_test.cpp
                        emulator_isa_test.cpp
  LIBRARIES flash_ladder_emulator flash_ladder_emulator_cases GTest::gmock nlohmann_json::nlohmann_json)
target_compile_definitions(
  emulator_test PRIVATE FLASH_LADDER_HARDWARE_RESULTS="${CMAKE_CURRENT_SOURCE_DIR}/emulator_hardware.json")

# The fuzz test, and the rest with it, under AddressSanitizer and UndefinedBehaviorSanitizer.
add_executable(emulator_sanitized_test emulator_cases.cpp emulator_conformance_test.cpp emulator_findings_test.cpp
                                       emulator_fuzz_test.cpp emulator_isa_test.cpp)
target_link_libraries(
  emulator_sanitized_test PRIVATE flash_ladder_options flash_ladder_emulator_sanitized GTest::gtest_main GTest::gmock
                                  nlohmann_json::nlohmann_json)
target_compile_definitions(
  emulator_sanitized_test PRIVATE FLASH_LADDER_HARDWARE_RESULTS="${CMAKE_CURRENT_SOURCE_DIR}/emulator_hardware.json")
add_test(NAME emulator_sanitized_test COMMAND emulator_sanitized_test --gtest_brief=1)

add_executable(emulator-hardware emulator_hardware.cpp)
target_link_libraries(emulator-hardware PRIVATE flash_ladder_options flash_ladder_emulator_cases nlohmann_json::nlohmann_json
                                                ${CMAKE_DL_LIBS})
