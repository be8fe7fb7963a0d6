// Has nothing but the headers that are precompiled for all tests: see CMakeLists.txt.
