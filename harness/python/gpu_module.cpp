#include "python/module.h"

NB_MODULE(_gpu, module) { flash_ladder::python::define_functions(module, flash_ladder::python::Place::gpu); }
