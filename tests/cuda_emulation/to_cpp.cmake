# Turns a source of the CUDA module into one that a host compiler takes, and plants faults in it:
#   cmake -DFROM=... -DTO=... [-DFAULTS=...] -P to_cpp.cmake
# Only launches and the clock have another syntax. A planted fault is another text that a
# test turns on (planted_faults.cmake).
file(READ "${FROM}" text)
if(FAULTS)
  get_filename_component(source "${FROM}" NAME)
  set(number 0)
  # plant(<file> <name> <original> <instead>): in <instead>, PLANTED is whether the fault is on.
  macro(plant file name original instead)
    math(EXPR number "${number} + 1")
    if("${file}" STREQUAL "${source}")
      string(FIND "${text}" "${original}" first)
      string(FIND "${text}" "${original}" last REVERSE)
      if(first LESS 0 OR NOT first EQUAL last)
        message(FATAL_ERROR "${file}: the planted fault ${name} needs a text that is there once:\n${original}")
      endif()
      string(REPLACE "PLANTED" "::kvtier::emulation::planted(${number})" with "${instead}")
      string(REPLACE "${original}" "${with}" text "${text}")
    endif()
  endmacro()
  include("${FAULTS}")
endif()
string(REGEX REPLACE "([A-Za-z_]+(<[A-Za-z0-9_, ]+>)?)[ \n]*<<<([^;]+)>>>\\("
  "::kvtier::emulation::Launcher({\\3}, \"\\1\", [](auto... a) { \\1(a...); })(" text "${text}")
string(REGEX REPLACE "asm volatile\\(\"mov\\.u64 %0, %%globaltimer;\" : \"=l\"\\(([a-z_]+)\\)\\);"
  "\\1 = ::kvtier::emulation::global_timer();" text "${text}")
file(WRITE "${TO}" "#line 1 \"${FROM}\"\n${text}")
