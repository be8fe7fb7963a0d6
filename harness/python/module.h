// The functions of an extension module. Both modules have the same ones; flash_ladder/_gpu.pyi describes them.
#pragma once

#include <nanobind/nanobind.h>

#include "python/forward.h"

namespace flash_ladder::python {

/// `place` is the location of the arrays that the module takes.
void define_functions(nanobind::module_& module, Place place);

}  // namespace flash_ladder::python
