# Tests of the virtual GPU's library. emulator-hardware runs the conformance suite on a GPU instead; it is built but not
# run.
add_library(flash_ladder_emulator_cases OBJECT emulator_cases.cpp emulator_hopper_cases.cpp)
target_link_libraries(flash_ladder_emulator_cases PRIVATE flash_ladder_options PUBLIC flash_ladder_emulator fmt::fmt)

add_library(flash_ladder_emulator_tests OBJECT emulator_conformance_test.cpp emulator_dataflow_test.cpp
                                               emulator_findings_test.cpp
                                               emulator_fuzz_test.cpp emulator_hopper_test.cpp emulator_isa_test.cpp
                                               emulator_trace_test.cpp)
target_include_directories(flash_ladder_emulator_tests PRIVATE ${PROJECT_SOURCE_DIR}/harness ${PROJECT_SOURCE_DIR}/common)
target_link_libraries(
  flash_ladder_emulator_tests PRIVATE flash_ladder_options fmt::fmt GTest::gmock nlohmann_json::nlohmann_json)
set_target_properties(flash_ladder_emulator_tests PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_precompile_headers(flash_ladder_emulator_tests REUSE_FROM flash_ladder_test_headers)
target_compile_definitions(
  flash_ladder_emulator_tests
  PRIVATE FLASH_LADDER_HARDWARE_RESULTS="${CMAKE_CURRENT_SOURCE_DIR}/emulator_hardware.json"
          FLASH_LADDER_ISA_TEST="${CMAKE_CURRENT_SOURCE_DIR}/emulator_isa_test.cpp")
set(test_objects $<TARGET_OBJECTS:flash_ladder_emulator_tests> $<TARGET_OBJECTS:flash_ladder_emulator_cases>)

flash_ladder_test(emulator_test SOURCES ${test_objects} LIBRARIES flash_ladder_emulator)

# The fuzz test, and the others with it, under AddressSanitizer and UndefinedBehaviorSanitizer, which watch the virtual
# GPU; the tests are the same objects as above. They come last, so that the linker takes inline functions that both
# contain from the virtual GPU. Only scripts/test --thorough builds and runs it: ctest -C Thorough.
add_executable(emulator_sanitized_test EXCLUDE_FROM_ALL $<TARGET_OBJECTS:flash_ladder_emulator_sanitized> ${test_objects})
target_link_libraries(emulator_sanitized_test PRIVATE fmt::fmt Threads::Threads GTest::gmock GTest::gtest_main)
target_link_options(emulator_sanitized_test PRIVATE $<TARGET_PROPERTY:flash_ladder_emulator_sanitized,LINK_OPTIONS>)
add_test(
  NAME emulator_sanitized_test
  CONFIGURATIONS Thorough
  COMMAND emulator_sanitized_test --gtest_brief=1)
set_tests_properties(emulator_sanitized_test PROPERTIES TIMEOUT ${hangs_after} COST 100)

add_executable(emulator-hardware emulator_hardware.cpp)
target_link_libraries(emulator-hardware PRIVATE flash_ladder_options flash_ladder_emulator_cases nlohmann_json::nlohmann_json
                                                ${CMAKE_DL_LIBS})

# How many kernels of any folder of PTX the virtual GPU can decode: scripts/emulator_coverage.
add_executable(emulator-coverage emulator_coverage.cpp)
target_link_libraries(emulator-coverage PRIVATE flash_ladder_options flash_ladder_emulator fmt::fmt)
flash_ladder_pytest(emulator_coverage_test.py)
