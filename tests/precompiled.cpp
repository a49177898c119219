// The source of the precompiled headers (tests/CMakeLists.txt).
