"""Write the shipped list of molecules: functional groups on carbon skeletons and rings.

python tools/enumerate_molecules.py > src/sigmaff_paper/qm7x_like/molecules.smi
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdkit.Chem import Mol

MAX_HEAVY_ATOMS = 7

GROUPS = (
    *("O", "OC", "OCC", "OC=O", "OC(C)=O", "N", "NC", "N(C)C", "NC=O", "NC(C)=O"),
    *("C=O", "C(C)=O", "C(=O)O", "C(=O)OC", "C(=O)N", "C(=O)NC", "C#N", "C=C", "C#C", "S", "SC", "Cl"),
)
"""Each begins with its bonding atom."""

ONE_SITE = (
    *("C{x}", "CC{x}", "CCC{x}", "CC{x}C", "CCCC{x}", "CCC{x}C", "CC(C)C{x}", "CC(C)(C){x}"),
    *("CCCCC{x}", "CCCC{x}C", "CCC{x}CC", "CC(C)CC{x}", "CC(C)(C)C{x}", "CCC(C)(C){x}", "CCCCCC{x}"),
    *("CCCCC{x}C", "CCC(C)CC{x}", "C=CC{x}", "C#CC{x}", "C=CCC{x}", "CC=CC{x}", "CC(=C)C{x}", "C#CCC{x}"),
)
TWO_SITES = (
    *("C{x}C{y}", "CC{x}C{y}", "C{x}CC{y}", "CCC{x}C{y}", "CC{x}CC{y}", "C{x}CCC{y}"),
    *("CC{x}C(C){y}", "C{x}C(C)C{y}", "C{x}CCCC{y}", "C{x}C=CC{y}"),
)
RINGS = (
    *("C1CC1{x}", "C1CC1C{x}", "C1CCC1{x}", "C1CCCC1{x}", "C1CCCCC1{x}", "C1C=CCC1{x}", "C1CO1", "C1OC1C{x}"),
    *("C1COC1", "C1OCC1{x}", "C1CNC1", "C1NCC1{x}", "C1CCOC1{x}", "C1COCC1{x}", "C1CCNC1{x}", "C1CNCC1{x}"),
    *("C1CCCN1{x}", "C1CCCCN1", "C1CCCCO1", "C1CCCCS1", "C1COCCN1", "C1CNCCN1", "C1CSCCN1", "C1COCCO1", "C1CSCCS1"),
    *("C1CCSC1{x}", "C1CSCC1{x}", "C1CCSC1", "C1CS1", "C1CSC1", "C1CCC(=O)C1", "C1CCC(=O)CC1", "C1CC(=O)C1"),
    *("O=C1CCCO1", "O=C1CCCN1", "CN1CCCC1=O", "O=C1CCCCN1", "O=C1CCCCO1", "O=C1OCCO1", "O=C1NCCN1", "C1OCCO1"),
    *("C1CC=CCC1", "C1=CCC=CC1", "C1CC=CC1", "C1=CCC=C1", "CC1CO1", "CC1CCC1C", "CC1(C)CC1", "CC1(C)CO1"),
)
AROMATICS = (
    *("c1ccccc1{x}", "c1ccncc1{x}", "c1ccnc(c1){x}", "c1cc(ccn1){x}", "c1cnccn1", "c1ccnnc1", "c1cncnc1"),
    *("c1nccnc1{x}", "c1ncncc1{x}", "c1ccoc1{x}", "c1cocc1{x}", "c1ccsc1{x}", "c1cscc1{x}", "c1cc[nH]c1{x}"),
    *("c1c[nH]cc1{x}", "c1ccn(c1){x}", "c1cnc([nH]1){x}", "c1[nH]cnc1{x}", "c1cn(cn1){x}", "c1cn[nH]c1{x}"),
    *("c1n[nH]cc1{x}", "c1cnn(c1){x}", "c1cnoc1{x}", "c1cocn1", "c1ncoc1{x}", "c1cscn1", "c1ncsc1{x}", "c1nc(sc1){x}"),
)
AROMATIC_GROUPS = ("C", "CC", "N", "NC", "O", "OC", "SC", "S", "Cl", "C=O", "C#N", "C=C", "CO", "CN", "CCl")

OTHERS = (
    *("C", "N", "O", "S", "Cl", "CC", "C=C", "C#C", "C#N", "C=O", "CC#N", "CC=O", "O=CO", "NC=O", "CC(C)=O", "C=CC=C"),
    *("CCC", "CCCC", "CC(C)C", "CCCCC", "CCC(C)C", "CC(C)(C)C", "CCCCCC", "CCCC(C)C", "CCC(C)CC", "CC(C)C(C)C"),
    *("CCC(C)(C)C", "CCCCCCC", "CCCCC(C)C", "CCCC(C)CC", "CC(C)CC(C)C", "CCC(C)C(C)C", "CC=C", "CC#C", "CC=CC"),
    *(
        "CC(C)=C",
        "CC#CC",
        "CC(C)=CC",
        "CC(C)=C(C)C",
        "CCC=CCC",
        "CC=CC=C",
        "C=CCCC=C",
        "CC(=C)C=C",
        "COC",
        "CSC",
        "CNC",
    ),
    *("CN(C)C", "COCOC", "COCOCC", "CCOCOCC", "COC(C)OC", "CSSC", "CCSSC", "CCSSCC", "CS(C)=O", "CCS(C)=O"),
    *("CS(C)(=O)=O", "CCS(C)(=O)=O", "CS(N)(=O)=O", "NC(N)=O", "CNC(N)=O", "CNC(=O)NC", "CN(C)C(N)=O", "NC(N)=S"),
    *("CC(N)=S", "CN(C)C=S", "NC(N)=N", "CC(N)=N", "CN=C", "CC=NC", "CC(C)=NO", "CC=NO", "CNN", "CN(C)N", "CNNC"),
    *("NO", "NN", "CON", "CNO", "OO", "CON=C", "CN(C)O", "COC(=O)OC", "CCOC(=O)OC", "NC(=O)OC", "NC(=O)OCC"),
    *("CNC(=O)OC", "CC(=O)C(C)=O", "O=CC=O", "CC(=O)C=O", "OC(=O)C(O)=O", "CC(=O)C(=O)O", "NC(=O)C(N)=O"),
    *("OC(=O)CC(O)=O", "CC(=O)OC(C)=O", "CC(Cl)=O", "CCC(Cl)=O", "ClC(Cl)Cl", "ClCCl", "CC(Cl)Cl", "ClC=CCl"),
    *("ClC(Cl)=C", "ClC(Cl)=CCl", "CC(Cl)=C", "CC=CCl", "ClC=C", "COC=C", "CCOC=C", "CSC=C", "CC(=O)OC=C", "CN(C)C=C"),
    *("C=CC=O", "CC=CC=O", "C=CC(C)=O", "C=CC(=O)O", "C=CC(=O)OC", "C=CC(N)=O", "C=CC#N", "C=C(C)C=O", "CC(=C)C(=O)O"),
    *("CC#CCO", "CC#CCN", "OCC#CCO", "N#CC#N", "N#CCC#N", "C#CC#C", "CSC#N", "CN=C=O", "CN=C=S", "CCN=C=S", "O=C=O"),
    *("S=C=S", "O=C=S", "N#CN", "CNC#N", "CN(C)C#N", "C=C=C", "CC=C=C", "C=C=O", "CC(=O)S", "CC(=O)SC", "CSC(C)=O"),
    *("OCC(O)CO", "NCC(O)CO", "NCC(O)CN", "OCC(N)CO", "NCC(N)CO", "ClCC(O)CO", "OCC(S)CO", "COCC(O)CO", "OCC(O)C=O"),
    *("OC(CO)C(=O)O", "NC(CO)C(=O)O", "NC(CS)C(=O)O", "CC(N)C(=O)O", "NCC(=O)O", "CNCC(=O)O", "NCCC(=O)O", "OCC(=O)CO"),
    *("COCCOC", "CCOCCO", "COCCOCC", "CN(C)CCO", "OCCOCCO", "NCCOCCN", "NCCNCCN", "OCCNCCO", "CNCCNC", "CSCCSC"),
    *("OCCSCCO", "ClCCOCCCl", "ClCCSCCCl", "CCOCC", "CCCOC", "CCSCC", "CCNCC", "CCN(C)CC", "CCCOCCC", "CCCNCC"),
    *("c1ccccc1", "c1ccncc1", "c1ccoc1", "c1ccsc1", "c1cc[nH]c1", "c1c[nH]cn1", "c1cn[nH]c1", "c1cnoc1"),
    *("CCN(C)C", "CCN(CC)CC", "CC(C)OC(C)C", "CC(C)NC(C)C", "CCSCCC", "CCC(=O)CC", "CCCC(=O)CC", "CCC(=O)OCC"),
    *("CCCOC(C)=O", "CC(C)OC(C)=O", "CCN(C)C(C)=O", "CCC(=O)N(C)C", "CC(=O)N(C)C", "CN(C)C=O", "CCN(CC)C=O"),
)

UNWANTED = (
    "[OX2H,SX2H,NX3H1,NX3H2;!$(*C=[O,S,N])][CX3]=[CX3;!a]",  # enols and their like, which are unstable
    "[CX4]([OX2,NX3,SX2,Cl])[OX2,NX3,SX2,Cl]",  # two of them on one carbon atom
    "[OX2H,SX2H][CX2]",
    "[OX2H,SX2H]-[c;r5]",  # tautomers of ketones
    "[#7;R]-[O,N,S,Cl;!R]",
    "n[CX4][O,N,S,Cl]",
)
"""SMARTS of combinations that are left out."""


def enumerate_molecules() -> list[str]:
    """Canonical SMILES, each once, from small to large."""
    from rdkit import Chem

    others = (Chem.MolFromSmiles(smiles) for smiles in OTHERS)
    size = {Chem.MolToSmiles(molecule): molecule.GetNumAtoms() for molecule in (*_combined(), *others)}
    return sorted(size, key=lambda smiles: (size[smiles], len(smiles), smiles))


def _combined() -> Iterator["Mol"]:
    from rdkit import Chem

    unwanted = [Chem.MolFromSmarts(smarts) for smarts in UNWANTED]
    for smiles in _filled():
        molecule = Chem.MolFromSmiles(smiles)
        if molecule.GetNumAtoms() <= MAX_HEAVY_ATOMS and not any(map(molecule.HasSubstructMatch, unwanted)):
            yield molecule


def _filled() -> Iterator[str]:
    """Every template with every group at every site."""
    for template in ONE_SITE + RINGS:
        yield from (template.format(x=f"({group})") for group in GROUPS)
    for template in AROMATICS:
        yield from (template.format(x=f"({group})") for group in AROMATIC_GROUPS)
    yield from (template.format(x="") for template in RINGS)
    for template in TWO_SITES:
        yield from (template.format(x=f"({first})", y=f"({second})") for first in GROUPS for second in GROUPS)


if __name__ == "__main__":
    print(*enumerate_molecules(), sep="\n")
