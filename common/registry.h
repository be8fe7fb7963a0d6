// The declarations for a kernel file's registration: the kernel's argument, and the list to which the file adds itself.
#pragma once

#include "attention.h"
#include "host/registration.h"
