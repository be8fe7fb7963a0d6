# The files for studying the kernels without running them, in ${PROJECT_BINARY_DIR}/study. For each NN_name.cu:
#
#   NN_name.compute_80.ptx   PTX with line information, which the virtual GPU runs;   and the same three for sm_90
#   NN_name.sm_80.cubin      machine code
#   NN_name.sm_80.ptxas      ptxas's report: registers and spills
#
# For a kernel of kernels/hopper/ there are only the files for sm_90a. They are kept when the kernel is compiled
# (compile_kernel.sh). The harness creates NN_name.sm_80.sass from the cubin on first use
# (harness/sass/machine_code.h).

# flash_ladder_study_files(TARGET ARCHITECTURES SOURCE): keeps the files above of the target's only source for each of these
# architectures, for which it is compiled: "80;90".
function(flash_ladder_study_files target architectures source)
  set(study ${PROJECT_BINARY_DIR}/study)
  # Goes before a launcher that is already set, which makes the compiler's output reproducible.
  set_target_properties(
    ${target} PROPERTIES CUDA_COMPILER_LAUNCHER
                         "${PROJECT_SOURCE_DIR}/harness/cmake/compile_kernel.sh;${study};${CMAKE_CUDA_COMPILER_LAUNCHER}")
  cmake_path(GET source STEM name)
  foreach(arch ${architectures})
    set_property(
      SOURCE ${source} APPEND PROPERTY OBJECT_OUTPUTS ${study}/${name}.compute_${arch}.ptx ${study}/${name}.sm_${arch}.cubin
                                       ${study}/${name}.sm_${arch}.ptxas)
  endforeach()
endfunction()
