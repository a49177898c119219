# Writes the commit of the sources in SOURCE to the source file OUTPUT, if it has changed. The commit is "unknown" if
# SOURCE is not the top of a git checkout (a tarball), and ends in "-dirty" if a tracked file differs.
cmake_minimum_required(VERSION 3.25)
set(ENV{GIT_OPTIONAL_LOCKS} 0)
set(commit unknown)
find_program(GIT git)
if(GIT)
  foreach(what IN ITEMS "rev-parse --show-toplevel" "rev-parse HEAD" "status --porcelain --untracked-files=no")
    separate_arguments(arguments UNIX_COMMAND "${what}")
    execute_process(COMMAND "${GIT}" -C "${SOURCE}" ${arguments}
      RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(failed)
      set(commit unknown)
      break()
    elseif(what MATCHES "toplevel")
      file(REAL_PATH "${SOURCE}" source)
      file(REAL_PATH "${output}" top)
      if(NOT source STREQUAL top)
        break()
      endif()
    elseif(what MATCHES "HEAD")
      set(commit "${output}")
    elseif(output)
      string(APPEND commit "-dirty")
    endif()
  endforeach()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT
  "namespace kvtier {
const char* build_commit();
const char* build_commit() { return \"@commit@\"; }
}  // namespace kvtier
")
