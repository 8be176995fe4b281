// The sixteen levels of IQ4_NL and IQ4_XS. They are denser near zero, where most weights are.
#pragma once

#define OCTAVO_IQ4_LEVELS {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
