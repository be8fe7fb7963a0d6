// What a kernel file needs for its registration: its argument, and the list to which it adds itself.
#pragma once

#include "attention.h"
#include "host/registration.h"
