// What holds for ranks of every kind. Each function is called by all ranks of a communicator at once; the
// tests call them with threads as ranks and under mpirun. They only EXPECT, so that no rank leaves the others
// behind.
#pragma once

#include "comm/claims_direct_sums.h"
#include "comm/claims_gathers.h"
#include "comm/claims_messages.h"
#include "comm/claims_order.h"
#include "comm/claims_sums.h"
#include "comm/claims_wires.h"
