// Contains only the headers that are precompiled for all tests: see CMakeLists.txt.
