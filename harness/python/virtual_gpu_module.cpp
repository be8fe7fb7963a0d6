#include "python/module.h"

NB_MODULE(_virtual_gpu, module) { flash_ladder::python::define_functions(module, flash_ladder::python::Place::host); }
