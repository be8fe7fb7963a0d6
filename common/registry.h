// What a kernel file needs to be found: its argument, and the list that it adds itself to.
#pragma once

#include "attention.h"
#include "host/registration.h"
