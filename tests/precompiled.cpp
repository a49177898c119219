// What precompiled headers belong to (tests/CMakeLists.txt).
