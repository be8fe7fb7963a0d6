# The libraries that the harness builds on: the system's if it has them, otherwise a pinned release from its upstream
# project.
include(FetchContent)

# SYSTEM: their headers' warnings are not ours.
FetchContent_Declare(fmt GIT_REPOSITORY https://github.com/fmtlib/fmt GIT_TAG 11.0.2 SYSTEM FIND_PACKAGE_ARGS 9)
FetchContent_Declare(nlohmann_json GIT_REPOSITORY https://github.com/nlohmann/json GIT_TAG v3.11.3 SYSTEM FIND_PACKAGE_ARGS 3.11)
FetchContent_Declare(CLI11 GIT_REPOSITORY https://github.com/CLIUtils/CLI11 GIT_TAG v2.4.2 SYSTEM FIND_PACKAGE_ARGS 2.1)
FetchContent_Declare(GTest GIT_REPOSITORY https://github.com/google/googletest GIT_TAG v1.15.2 SYSTEM FIND_PACKAGE_ARGS 1.12)
set(INSTALL_GTEST OFF)
FetchContent_MakeAvailable(fmt nlohmann_json)
if(NOT SKBUILD)
  FetchContent_MakeAvailable(CLI11 GTest)
endif()
