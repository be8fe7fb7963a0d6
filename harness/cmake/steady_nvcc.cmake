# nvcc 13.0 generates one of a few different PTX texts from the same source. What the virtual GPU counts is compared
# with profiles/emulator to the last instruction, so this file removes three things on which the text depends;
# scripts/steady_ptx.py counts the differences that remain.
#
#   names      Internal names contain a hash of the process id, the time and the environment, and their order decides the
#              order of some instructions. -frandom-seed replaces the hashed data: flash_ladder_steady() below.
#   addresses  Tables of pointers are traversed in address order: no address space randomisation, if the system allows
#              that (setarch -R), and a layout that does not depend on the stack limit (-L).
#   time       The allocator of nvcc's compiler proper, jemalloc, returns memory after a time, so that a slow machine
#              gets different addresses from a fast one; and its number of arenas is the number of CPUs.
find_program(FLASH_LADDER_ENV env)
find_program(FLASH_LADDER_SETARCH setarch)
set(steady)
if(FLASH_LADDER_ENV)
  list(APPEND steady ${FLASH_LADDER_ENV} "MALLOC_CONF=narenas:1,dirty_decay_ms:-1,muzzy_decay_ms:-1")
endif()
if(FLASH_LADDER_SETARCH)
  execute_process(COMMAND ${FLASH_LADDER_SETARCH} -R -L true RESULT_VARIABLE refused OUTPUT_QUIET ERROR_QUIET)
  if(refused EQUAL 0)
    list(APPEND steady ${FLASH_LADDER_SETARCH} -R -L)
  endif()
endif()
# Goes before a launcher of the user's (ccache perhaps), which stays in the cache as it was given.
list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER ${steady})

execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --help OUTPUT_VARIABLE nvcc_help ERROR_QUIET)
string(FIND "${nvcc_help}" "--frandom-seed" FLASH_LADDER_NVCC_SEED)

# flash_ladder_steady(SOURCES…): CUDA sources of the current folder whose PTX must be the same each time. Two sources of
# one program must not have the same name.
function(flash_ladder_steady)
  if(FLASH_LADDER_NVCC_SEED EQUAL -1)
    return()
  endif()
  foreach(source ${ARGN})
    cmake_path(GET source STEM name)
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -frandom-seed=${name})
  endforeach()
endfunction()
